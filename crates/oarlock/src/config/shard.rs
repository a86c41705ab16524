//! What is sharded over the ranks and where it lies. Whatever depends on the size of the model is a rule until the model
//! is read.

use std::path::PathBuf;

use oarlock_tensor::DType;

/// What is sharded across the ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardArgs {
    /// Where master weights and the states of the optimizer lie.
    pub optimizer: Placement,
    /// Where gradients lie.
    pub gradients: Placement,
    /// Where parameters lie.
    pub parameters: Placement,
    /// What becomes a unit: what is gathered and reduced together.
    pub wrap: Wrap,
    /// How long a gathered copy of sharded parameters lives.
    pub lifetime: Lifetime,
    /// The ranks over which a state is sharded; other groups of ranks hold replicas.
    pub group: ShardGroup,
    /// The ranks of a group that keeps a second sharded copy of the parameters from forward to backward.
    pub secondary: Option<usize>,
    /// Parameters that are gathered ahead of their use.
    pub prefetch: Elems,
    /// The most gathered parameters at a time.
    pub max_live: Elems,
    /// A parameter of fewer elements stays whole.
    pub persistence: Elems,
    /// Gradients that are reduced together.
    pub reduce_bucket: Elems,
    /// Whether communication proceeds while units compute, where the transport can do that.
    pub overlap: bool,
    /// What gradients are reduced in; `None`: what the engine always uses.
    pub reduce_dtype: Option<DType>,
    /// What ranks send in few bits.
    pub quantized: Quantized,
    /// Where the states of the optimizer lie instead of the memory of their rank's device.
    pub offload_optimizer: Option<Offload>,
    /// The same of parameters.
    pub offload_parameters: Option<Offload>,
    /// Write whole weights beside the sharded ones into every checkpoint.
    pub whole_weights_on_save: bool,
    /// The form of checkpoints.
    pub state_dict: StateDict,
}

impl ShardArgs {
    /// What holds when nobody says anything: each rank keeps its part of the optimizer's states and all the rest.
    pub const UNSAID: ShardArgs = ShardArgs {
        optimizer: Placement::Sharded,
        gradients: Placement::Whole,
        parameters: Placement::Whole,
        wrap: Wrap::Declared,
        lifetime: Lifetime::OneUse,
        group: ShardGroup::World,
        secondary: None,
        prefetch: Elems::Count(50_000_000),
        max_live: Elems::Count(1_000_000_000),
        persistence: Elems::Count(100_000),
        reduce_bucket: Elems::Count(500_000_000),
        overlap: true,
        reduce_dtype: None,
        quantized: Quantized::NONE,
        offload_optimizer: None,
        offload_parameters: None,
        whole_weights_on_save: false,
        state_dict: StateDict::Sharded,
    };
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

/// The ranks over which a state is sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardGroup {
    /// All ranks.
    World,
    /// The ranks of one machine.
    Machine,
    /// So many neighbouring ranks.
    Ranks(usize),
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

impl Elems {
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
    /// So many neighbouring ranks count as those of a machine; `None`: the ranks of each machine.
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
    pub const UNSAID: LossScale = LossScale::Dynamic {
        initial_power: 16,
        growth_interval: 1000,
        hysteresis: 2,
        consecutive_hysteresis: false,
        min_scale: 1.0,
    };
}
