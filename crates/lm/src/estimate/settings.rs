//! What is trained how, as far as memory is concerned.

use std::path::PathBuf;

use oarlock_tensor::DType;
use oarlock_tensor::ops::optimizer::{LowRankArgs, Rule};

use oarlock_config::config::{Gather, Offload, ShardingConfig};

/// How much of the model's state is sharded over the ranks: DeepSpeed's stages of ZeRO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Nothing: data parallel with whole states. FSDP's NO_SHARD.
    Whole,
    /// Optimizer state and master weights.
    Optimizer,
    /// Gradients, too. FSDP's SHARD_GRAD_OP.
    Gradients,
    /// Parameters, too. FSDP's FULL_SHARD.
    Parameters,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 4] = [Stage::Whole, Stage::Optimizer, Stage::Gradients, Stage::Parameters];

    /// DeepSpeed's number.
    pub fn number(self) -> usize {
        self as usize
    }

    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Whole => "DDP",
            Stage::Optimizer => "ZeRO-1",
            Stage::Gradients => "ZeRO-2",
            Stage::Parameters => "ZeRO-3",
        }
    }
}

/// The optimizers, as far as memory is concerned.
#[derive(Clone, Debug, PartialEq)]
pub enum Optim {
    /// Adam, AdamW: two moments.
    TwoMoments,
    /// LAMB: two moments, of whole parameters at a time.
    Lamb,
    /// Lion, Adagrad, SGD with momentum: one state.
    OneState,
    /// SGD without momentum.
    Stateless,
    /// Adafactor: sums over rows and columns of matrices.
    Factored,
    /// Muon: one state for matrices, two for all others.
    Muon,
    /// GaLore, APOLLO: the states of a subspace for hidden matrices, of which names may select some; two moments for all
    /// others.
    LowRank(LowRankArgs, Vec<String>),
    /// Any other rule: the states that it keeps.
    Other(Rule),
}

/// What is trained how, as far as memory is concerned.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How the model is sharded: its dtype, sizes, files. What is sharded over how many ranks, `stage` and `group` say; only
    /// files count among what is offloaded.
    pub sharding: ShardingConfig,
    /// What is sharded over the ranks.
    pub stage: Stage,
    /// Ranks, all of this machine where they share memory.
    pub ranks: usize,
    /// The ranks of a group over which states are sharded, and whose states other groups hold as well: MiCS and
    /// HYBRID_SHARD; only from [`Stage::Gradients`] on. All ranks, by default.
    pub group: usize,
    /// Where ranks share no memory, as over MPI, how many are on this machine.
    pub apart: Option<usize>,
    /// The optimizer.
    pub optim: Optim,
}

impl Settings {
    /// In-memory states, AdamW, and everything else as by default.
    pub fn new(dtype: DType, stage: Stage, ranks: usize) -> Settings {
        Settings {
            sharding: ShardingConfig { dtype, ..ShardingConfig::default() },
            stage,
            ranks: ranks.max(1),
            group: ranks.max(1),
            apart: None,
            optim: Optim::TwoMoments,
        }
    }

    /// The ranks over which states are sharded.
    pub(super) fn shard_ranks(&self) -> usize {
        if self.stage >= Stage::Gradients { self.group.clamp(1, self.ranks) } else { self.ranks }
    }

    /// The groups of ranks that hold the same sharded states.
    pub(super) fn replicas(&self) -> usize {
        self.ranks / self.shard_ranks()
    }

    /// Whether sharded parameters are gathered into buffers, rather than read where their owners keep them.
    pub(super) fn gathers(&self) -> bool {
        let moves = self.copies()
            || self.in_8_bits()
            || self.apart.is_some()
            || self.sharding.offload_params.is_some();
        self.stage == Stage::Parameters && moves
    }

    /// Whether gathered parameters are copied, as between machines, rather than read where their owners keep them.
    pub(super) fn copies(&self) -> bool {
        self.sharding.gather == Gather::Copy
    }

    /// Whether gathered parameters come in 8 bits, each rank with a copy of its own: qwZ.
    pub(super) fn in_8_bits(&self) -> bool {
        self.sharding.quantized.weights
    }

    /// Whether the gradients of two units are in flight at a time.
    pub(super) fn overlaps(&self) -> bool {
        self.sharding.overlap && self.apart.is_some() && self.ranks > 1
    }

    /// How states in files are read and written: as the optimizer's are, where both kinds of state are in files.
    pub(super) fn files(&self) -> Offload {
        let files = self.sharding.offload_optimizer.as_ref().or(self.sharding.offload_params.as_ref());
        files.cloned().unwrap_or_else(offload_to_files)
    }
}

/// Files of a usual size for an estimate, which touches no folder.
pub fn offload_to_files() -> Offload {
    Offload { dir: Some(PathBuf::new()), sub_group_elems: 1 << 22, buffers: 4 }
}
