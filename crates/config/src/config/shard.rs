//! What is sharded over the ranks and where it lies. Whatever depends on the size of the model is a rule until the model
//! is read.

use std::path::PathBuf;

use oarlock_tensor::DType;

/// How a model is sharded over ranks: all that engine, estimate and planner are told. A size is a number of elements, or in
/// a `ShardingConfig<Elems>` a rule, as long as the model's hidden size is not known.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardingConfig<Size = usize> {
    /// The dtype of the working copies and of the arithmetic on them.
    pub dtype: DType,
    /// What is sharded over the ranks.
    pub placements: Placements,
    /// How long gathered parameters live.
    pub lifetime: Lifetime,
    /// State is sharded inside groups of so many neighboring ranks, and equal across groups. All ranks, by default.
    pub group: Option<usize>,
    /// Where `group` says nothing, the groups are the ranks of each machine.
    pub by_machine: bool,
    /// From forward to backward, parameters stay sharded inside groups of so many neighboring ranks.
    pub secondary: Option<usize>,
    /// How sharded parameters are gathered.
    pub gather: Gather,
    /// Which declared units are units: what is gathered and reduced together.
    pub wrap: Wrap,
    /// What a step does to parameters that no rank touched.
    pub untouched: Untouched,
    /// Units are gathered ahead of their use until so many elements are; 0 for none.
    pub prefetch_elems: Size,
    /// Elements beyond which nothing is gathered ahead.
    pub max_live_elems: Size,
    /// A unit stays gathered from its forward to its backward pass if fewer elements than these are used in between.
    pub reuse_elems: Size,
    /// Parameters with fewer elements stay whole.
    pub persistence_elems: Size,
    /// Elements of a reduction.
    pub reduce_bucket_elems: Size,
    /// Whether gathers and reductions proceed while units compute, over transports that can: `overlap_comm`.
    pub overlap: bool,
    /// What gradients are reduced in; `None`: f32. Sums are f32 before and after.
    pub reduce_dtype: Option<DType>,
    /// What ranks send in few bits: ZeRO++.
    pub quantized: Quantized,
    /// Master weights and optimizer state in a file or, beside a GPU, in main memory; there the CPU updates them.
    pub offload_optimizer: Option<Offload>,
    /// Working copies there, and gathered from there.
    pub offload_params: Option<Offload>,
}

impl<Size: From<usize>> Default for ShardingConfig<Size> {
    /// ZeRO-1 in f32, DeepSpeed's sizes.
    fn default() -> Self {
        ShardingConfig {
            dtype: DType::F32,
            placements: Placements::OPTIMIZER,
            lifetime: Lifetime::OneUse,
            group: None,
            by_machine: false,
            secondary: None,
            gather: Gather::InPlace,
            wrap: Wrap::Declared,
            untouched: Untouched::Zero,
            prefetch_elems: Size::from(50_000_000),
            max_live_elems: Size::from(1_000_000_000),
            reuse_elems: Size::from(0),
            persistence_elems: Size::from(100_000),
            reduce_bucket_elems: Size::from(500_000_000),
            overlap: true,
            reduce_dtype: None,
            quantized: Quantized::NONE,
            offload_optimizer: None,
            offload_params: None,
        }
    }
}

impl<Size> ShardingConfig<Size> {
    /// The dtype in which gradients are reduced.
    pub fn reduces_in(&self) -> DType {
        self.reduce_dtype.unwrap_or(DType::F32)
    }
}

impl ShardingConfig<Elems> {
    /// What a run records of it. All fields are named, so that a new one does not compile before somebody has said whether it
    /// changes more than time and memory.
    pub fn recorded(&self) -> RecordedSharding<'_> {
        let ShardingConfig {
            dtype: _,
            placements,
            lifetime: _,
            group,
            by_machine,
            secondary: _,
            gather: _,
            wrap,
            untouched: _,
            prefetch_elems: _,
            max_live_elems: _,
            reuse_elems: _,
            persistence_elems: _,
            reduce_bucket_elems: _,
            overlap: _,
            reduce_dtype,
            quantized,
            offload_optimizer,
            offload_params,
        } = self;
        let group = match (group, by_machine) {
            (Some(ranks), _) => format!("Ranks({ranks})"),
            (None, true) => "Machine".to_owned(),
            (None, false) => "World".to_owned(),
        };
        RecordedSharding {
            placements: *placements,
            group,
            wrap,
            reduce_dtype: *reduce_dtype,
            quantized: *quantized,
            offload_optimizer: offload_optimizer.as_ref(),
            offload_params: offload_params.as_ref(),
        }
    }

    /// The same for a model of this dtype and hidden size, which counts only where sizes follow from it.
    pub fn resolve(&self, dtype: DType, hidden_size: usize) -> ShardingConfig {
        let of = |size: Elems| size.of(hidden_size);
        ShardingConfig {
            dtype,
            placements: self.placements,
            lifetime: self.lifetime,
            group: self.group,
            by_machine: self.by_machine,
            secondary: self.secondary,
            gather: self.gather,
            wrap: self.wrap.clone(),
            untouched: self.untouched,
            prefetch_elems: of(self.prefetch_elems),
            max_live_elems: of(self.max_live_elems),
            reuse_elems: of(self.reuse_elems),
            persistence_elems: of(self.persistence_elems),
            reduce_bucket_elems: of(self.reduce_bucket_elems),
            overlap: self.overlap,
            reduce_dtype: self.reduce_dtype,
            quantized: self.quantized,
            offload_optimizer: self.offload_optimizer.clone(),
            offload_params: self.offload_params.clone(),
        }
    }
}

/// What a run records of how its model is sharded.
#[derive(Clone, Debug)]
pub struct RecordedSharding<'c> {
    /// What is sharded over the ranks.
    pub placements: Placements,
    /// The ranks inside which state is sharded.
    pub group: String,
    /// What is gathered and reduced together.
    pub wrap: &'c Wrap,
    /// What gradients are reduced in.
    pub reduce_dtype: Option<DType>,
    /// What ranks send in few bits.
    pub quantized: Quantized,
    /// Optimizer state that lies elsewhere.
    pub offload_optimizer: Option<&'c Offload>,
    /// Parameters that lie elsewhere.
    pub offload_params: Option<&'c Offload>,
}

/// Where the three kinds of state lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placements {
    /// Master weights and the optimizer's state.
    pub optimizer: Placement,
    /// Gradient sums.
    pub gradients: Placement,
    /// Working copies of the weights.
    pub parameters: Placement,
}

impl Placements {
    /// DDP, ZeRO-0, NO_SHARD.
    pub const WHOLE: Placements = Placements::new(Placement::Whole, Placement::Whole, Placement::Whole);
    /// ZeRO-1.
    pub const OPTIMIZER: Placements = Placements::new(Placement::Sharded, Placement::Whole, Placement::Whole);
    /// ZeRO-2.
    pub const GRADIENTS: Placements =
        Placements::new(Placement::Sharded, Placement::Sharded, Placement::Whole);
    /// ZeRO-3, FULL_SHARD, SHARD_GRAD_OP.
    pub const PARAMETERS: Placements =
        Placements::new(Placement::Sharded, Placement::Sharded, Placement::Sharded);

    const fn new(optimizer: Placement, gradients: Placement, parameters: Placement) -> Placements {
        Placements { optimizer, gradients, parameters }
    }
}

/// How sharded parameters are gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gather {
    /// The ranks of one machine see one copy, of which each updates its part: a gather moves nothing.
    InPlace,
    /// Each rank keeps its part, and a unit is gathered into a buffer when it is used, as between machines.
    Copy,
}

/// What a step does to trained parameters that got no gradient on any rank since the step before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Untouched {
    /// Their gradient is zero: weight decay applies, and moments decay. Bits do not depend on who touched what.
    #[default]
    Zero,
    /// They are left out of the step altogether, as torch does with a gradient of None: weights and moments stay, and
    /// steps that leave a parameter out do not count in its bias correction.
    Skip,
}

/// Where one kind of state (optimizer state, gradients, parameters) lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Each rank has all of it.
    Whole,
    /// Each rank has the part that it owns.
    Sharded,
}

/// Which declared units stay units. What no unit holds moves with the root: it is gathered for the whole step, and its
/// gradients leave at the end. A policy changes bits only where sharded gradients accumulate (docs/sharding.md).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Wrap {
    /// All that the model declares.
    #[default]
    Declared,
    /// Those whose module is of one of these types: `TRANSFORMER_BASED_WRAP` with
    /// `fsdp_transformer_layer_cls_to_wrap`.
    Transformer(Vec<String>),
    /// Those with at least so many elements: `SIZE_BASED_WRAP` with `fsdp_min_num_params`.
    Size(usize),
    /// None: `NO_WRAP`.
    None,
}

/// How long a gathered copy of sharded parameters lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lifetime {
    /// Until the unit's pass is over; gathered again for the backward pass.
    OneUse,
    /// From the unit's forward pass to the end of its backward pass.
    ForwardToBackward,
}

/// A number of elements, which may follow from the model's hidden size h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elems {
    /// So many.
    Count(usize),
    /// h².
    HiddenSquared,
    /// 0.9 h², rounded down.
    NineTenthsOfHiddenSquared,
    /// 10 h.
    TenHidden,
}

impl From<usize> for Elems {
    fn from(count: usize) -> Elems {
        Elems::Count(count)
    }
}

impl Elems {
    /// How it follows from the hidden size; `None` where it does not.
    pub fn formula(self) -> Option<&'static str> {
        match self {
            Elems::Count(_) => None,
            Elems::HiddenSquared => Some("h x h"),
            Elems::NineTenthsOfHiddenSquared => Some("0.9 x h x h"),
            Elems::TenHidden => Some("10 x h"),
        }
    }

    /// The number, given the hidden size of the model.
    pub fn of(self, hidden_size: usize) -> usize {
        let squared = hidden_size.saturating_mul(hidden_size);
        match self {
            Elems::Count(count) => count,
            Elems::HiddenSquared => squared,
            // Whole numbers, so that no size is rounded twice.
            Elems::NineTenthsOfHiddenSquared => (squared as u128 * 9 / 10) as usize,
            Elems::TenHidden => hidden_size.saturating_mul(10),
        }
    }
}

/// What ranks send as integers of few bits, with a scale for each block of elements: ZeRO++
/// (<https://arxiv.org/abs/2306.10209>). Only where parameters are sharded, and among several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantized {
    /// Gathered weights, in 8 bits: qwZ, `zero_quantized_weights`.
    pub weights: bool,
    /// Those that are frozen: `zero_quantized_nontrainable_weights`.
    pub frozen_weights: bool,
    /// Gradients of units, in 4 bits: qgZ, `zero_quantized_gradients`. They are added up on each machine and then between
    /// machines. As in DeepSpeed, those of vectors travel as they are, and on one machine all do.
    pub gradients: bool,
    /// So many neighboring ranks count as those of a machine; `None`: the ranks of each machine.
    pub machine: Option<usize>,
}

impl Quantized {
    /// Everything is sent as it is.
    pub const NONE: Quantized =
        Quantized { weights: false, frozen_weights: false, gradients: false, machine: None };

    /// Whether anything is quantized.
    pub fn any(&self) -> bool {
        self.weights || self.frozen_weights || self.gradients
    }
}

/// State that lies elsewhere than in the memory of the rank's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offload {
    /// A folder on a fast disk. The files in it have no name, so nothing is left of them after the run. `None`: main
    /// memory, where CPU ranks have it anyway.
    pub dir: Option<PathBuf>,
    /// Elements that are read, updated and written at once.
    pub sub_group_elems: usize,
    /// Such groups in memory at the same time; at least three, so that reading, updating and writing overlap.
    pub buffers: usize,
}

impl Offload {
    /// Main memory; pieces that are large enough for the bus of a GPU.
    pub const TO_MEMORY: Offload = Offload { dir: None, sub_group_elems: 1 << 23, buffers: 4 };

    /// Whether the state lies in files.
    pub fn is_in_files(&self) -> bool {
        self.dir.is_some()
    }
}

/// The form of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateDict {
    /// All of it in one place, gathered from the ranks.
    Full,
    /// Each rank writes what it holds, as it holds it.
    Local,
    /// Each rank writes its parts; any number of ranks can read them.
    Sharded,
}

/// What a decoder keeps from the forward pass for the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Everything that the backward pass needs.
    #[default]
    None,
    /// Of the first block of every `every` blocks (1: of each block) nothing but its input.
    Units {
        /// At least 1.
        every: usize,
    },
    /// Of parts of each block nothing but their input.
    Parts {
        /// Attention and the norm before it.
        attention: bool,
        /// The MLP and the norm before it.
        mlp: bool,
    },
}

/// How a loss is scaled so that small gradients survive in f16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScale {
    /// Always by the same factor.
    Static(f64),
    /// By a power of two that falls on an overflow and rises after steps without one.
    Dynamic {
        /// The exponent of the first scale.
        initial_power: u32,
        /// Steps without an overflow after which the scale doubles.
        growth_interval: u64,
        /// Overflows that are borne before the scale falls.
        hysteresis: u32,
        /// A step without an overflow renews the hysteresis; otherwise only a doubling does.
        consecutive_hysteresis: bool,
        /// The least scale.
        min_scale: f64,
    },
}

impl LossScale {
    /// What holds when nobody says anything.
    pub const UNSET: LossScale = LossScale::Dynamic {
        initial_power: 16,
        growth_interval: 1000,
        hysteresis: 2,
        consecutive_hysteresis: false,
        min_scale: 1.0,
    };
}
