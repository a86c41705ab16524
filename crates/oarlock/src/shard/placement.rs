//! Placements: whether a kind of state is whole on each rank or sharded over them, and everything else that an engine
//! is told. Every strategy of data parallelism is a row of this table:
//!
//! ```text
//! strategy                  optimizer  gradients  parameters  gathered copy lives
//! DDP, ZeRO-0, NO_SHARD     whole      whole      whole       always
//! ZeRO-1                    sharded    whole      whole       always
//! ZeRO-2                    sharded    sharded    whole       always
//! SHARD_GRAD_OP             sharded    sharded    sharded     from forward to backward
//! ZeRO-3, FULL_SHARD        sharded    sharded    sharded     one use
//! ```
//!
//! HYBRID_SHARD and MiCS are the last two inside groups of ranks ([`Options::group`]); hpZ is the last with a second
//! copy, sharded inside groups ([`Options::secondary`]).

use oarlock_tensor::{DType, Device};

pub use crate::config::{Lifetime, Offload, Placement, Quantized};
use crate::error::{Error, Result};
use crate::nn::Wrap;

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

/// How sharded parameters come together.
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

/// How the engine holds a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The dtype of the working copies and of the arithmetic on them.
    pub dtype: DType,
    /// What is sharded over the ranks.
    pub placements: Placements,
    /// How long gathered parameters live.
    pub lifetime: Lifetime,
    /// State is sharded inside groups of so many neighbouring ranks, and equal across groups. All ranks, by default.
    pub group: Option<usize>,
    /// Where `group` says nothing, the groups are the ranks of each machine.
    pub by_machine: bool,
    /// From forward to backward, parameters stay sharded inside groups of so many neighbouring ranks.
    pub secondary: Option<usize>,
    /// How sharded parameters come together.
    pub gather: Gather,
    /// Which declared units are units.
    pub wrap: Wrap,
    /// What a step does to parameters that no rank touched.
    pub untouched: Untouched,
    /// Units are gathered ahead of their use until so many elements are; 0 for none.
    pub prefetch_elems: usize,
    /// Elements beyond which nothing is gathered ahead.
    pub max_live_elems: usize,
    /// Parameters with fewer elements stay whole.
    pub persistence_elems: usize,
    /// Elements of a reduction.
    pub reduce_bucket_elems: usize,
    /// Whether gathers and reductions proceed while units compute, over transports that can: `overlap_comm`.
    pub overlap: bool,
    /// What gradients are reduced in; sums are f32 before and after.
    pub reduce_dtype: DType,
    /// What ranks send in few bits: ZeRO++.
    pub quantized: Quantized,
    /// Master weights and optimizer state in a file or, beside a GPU, in main memory; there the CPU updates them.
    pub offload_optimizer: Option<Offload>,
    /// Working copies there, and gathered from there.
    pub offload_params: Option<Offload>,
}

impl Default for Options {
    /// ZeRO-1 in f32, DeepSpeed's sizes.
    fn default() -> Options {
        Options {
            dtype: DType::F32,
            placements: Placements::OPTIMIZER,
            lifetime: Lifetime::OneUse,
            group: None,
            by_machine: false,
            secondary: None,
            gather: Gather::InPlace,
            wrap: Wrap::Declared,
            untouched: Untouched::Zero,
            prefetch_elems: 50_000_000,
            max_live_elems: 1_000_000_000,
            persistence_elems: 100_000,
            reduce_bucket_elems: 500_000_000,
            overlap: true,
            reduce_dtype: DType::F32,
            quantized: Quantized::NONE,
            offload_optimizer: None,
            offload_params: None,
        }
    }
}

impl Options {
    /// What of this there is on a device: state of the CPU is in main memory anyway.
    pub(super) fn on(mut self, device: &Device) -> Options {
        if !device.is_cuda() {
            self.offload_optimizer = self.offload_optimizer.filter(Offload::is_in_files);
            self.offload_params = self.offload_params.filter(Offload::is_in_files);
        }
        self
    }

    /// Whether the CPU beside a device runs the optimizer.
    pub(super) fn updates_beside(&self, device: &Device) -> bool {
        device.is_cuda() && self.offload_optimizer.is_some()
    }

    /// Looks for what a stage of a pipeline cannot have: micro-batches are in flight there in any order, and nothing may
    /// move during their passes.
    ///
    /// # Errors
    /// What, and what to do.
    pub(crate) fn check_stage(&self) -> Result<()> {
        if self.placements.gradients == Placement::Sharded {
            return Err(Error::Usage(
                "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism, as in DeepSpeed: use stage 0 or 1 (NO_SHARD in \
                 FSDP's terms)"
                    .to_owned(),
            ));
        }
        if self.wrap != Wrap::Declared {
            return Err(Error::Usage(
                "a wrap policy other than that of the model's layers does not go with pipeline parallelism"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Looks for what contradicts itself.
    ///
    /// # Errors
    /// What, and what to do.
    pub fn check(&self, world_size: usize) -> Result<()> {
        let wrong = |what: String| Err(Error::Usage(what));
        let Placements { optimizer, gradients, parameters } = self.placements;
        if (gradients, optimizer) == (Placement::Sharded, Placement::Whole)
            || (parameters, gradients) == (Placement::Sharded, Placement::Whole)
        {
            return wrong(
                "sharded parameters need sharded gradients, and those a sharded optimizer".to_string(),
            );
        }
        for (what, size) in [("sharding group", self.group), ("secondary group", self.secondary)] {
            if let Some(size) = size
                && (size == 0 || !world_size.is_multiple_of(size))
            {
                return wrong(format!("{world_size} ranks cannot be split into {what}s of {size}"));
            }
        }
        if self.group.is_some() && gradients == Placement::Whole {
            return wrong("a sharding group needs sharded gradients".to_string());
        }
        if self.group.is_some() && self.secondary.is_some() {
            return wrong("give a sharding group or a secondary group, not both".to_string());
        }
        if self.quantized.any() && parameters == Placement::Whole {
            return wrong(
                "quantized weights and gradients (ZeRO++) need sharded parameters (ZeRO-3)".to_string(),
            );
        }
        let in_files = |offload: &Option<Offload>| offload.as_ref().is_some_and(Offload::is_in_files);
        if in_files(&self.offload_params) && parameters == Placement::Whole {
            return wrong("parameters can be offloaded only where they are sharded (ZeRO-3)".to_string());
        }
        if in_files(&self.offload_optimizer) && optimizer == Placement::Whole {
            return wrong(
                "the optimizer can be offloaded only where it is sharded (ZeRO-1 to 3)".to_string(),
            );
        }
        if !self.dtype.is_float() || !self.reduce_dtype.is_float() {
            return wrong(format!("cannot train in {} and reduce in {}", self.dtype, self.reduce_dtype));
        }
        if self.reduce_bucket_elems == 0 {
            return wrong("a reduction of no elements: reduce_bucket_size must be at least 1".to_string());
        }
        Ok(())
    }
}
