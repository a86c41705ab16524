//! Memory known before the start: what each part of a training takes, for every stage, without running it.
//!
//! Model states follow from the layout of the units by formula. Activations follow from the model's own code, run on a
//! dry device. The sum is compared with what the machine has before anything is loaded, and with what was used at the end.
//!
//! All figures are proportional set sizes (PSS): a page that n processes share counts 1/n for each, so the figures of
//! the ranks add up to what the machine needs.

mod activations;
mod deepspeed;
mod forecast;
mod limits;
mod size;
mod states;

#[cfg(test)]
mod tests;

pub use crate::error::{Limit, NotEnoughMemory, readable};
pub use activations::{DryRun, MicroBatch, Pass, StepShape, decoder_step, dry_run};
pub use deepspeed::{zero2, zero3};
pub use forecast::{Forecast, Training, program_bytes};
pub use limits::Limits;
pub use size::ModelSize;
pub use states::model_states;

use oarlock_tensor::DType;

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
        match self {
            Stage::Whole => 0,
            Stage::Optimizer => 1,
            Stage::Gradients => 2,
            Stage::Parameters => 3,
        }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// Where a kind of state is kept between its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// In memory: for ranks on CPU, `none` and `cpu` are the same.
    Memory,
    /// In files, through buffers in memory.
    Nvme,
}

/// What is trained how, as far as memory is concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The dtype of the arithmetic.
    pub dtype: DType,
    /// What is sharded over the ranks.
    pub stage: Stage,
    /// Ranks, all of this machine where they share memory.
    pub ranks: usize,
    /// Where ranks share no memory, as over MPI, how many are on this machine.
    pub apart: Option<usize>,
    /// The optimizer.
    pub optim: Optim,
    /// Where master weights and optimizer state are kept.
    pub optimizer: Offload,
    /// Where parameters are kept; only for [`Stage::Parameters`].
    pub parameters: Offload,
    /// Elements that are read from files and written back together.
    pub sub_group_elems: usize,
    /// Buffers of that size.
    pub buffers: usize,
    /// Elements that are gathered ahead of their use, where parameters come from files.
    pub prefetch_elems: usize,
    /// Whether gathered parameters are copied, as between machines, or read where their owners keep them.
    pub gather_copies: bool,
    /// The dtype in which gradients are summed over the ranks; 16 bits need a buffer to round into.
    pub reduce_dtype: DType,
}

impl Settings {
    /// In-memory states, AdamW, and everything else as by default.
    pub fn new(dtype: DType, stage: Stage, ranks: usize) -> Settings {
        Settings {
            dtype,
            stage,
            ranks: ranks.max(1),
            apart: None,
            optim: Optim::TwoMoments,
            optimizer: Offload::Memory,
            parameters: Offload::Memory,
            sub_group_elems: 1 << 22,
            buffers: 4,
            prefetch_elems: 50_000_000,
            gather_copies: false,
            reduce_dtype: DType::F32,
        }
    }
}

/// One thing that takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// Bytes of the rank with the largest share.
    pub rank: u64,
    /// Bytes of all ranks of the machine together.
    pub machine: u64,
    /// Whether the ranks share the memory, so that each has all of it in its address space.
    pub shared: bool,
}

impl Part {
    /// The same on each of `ranks` ranks.
    fn each(name: &'static str, bytes: u64, ranks: usize) -> Part {
        Part { name, rank: bytes, machine: bytes.saturating_mul(ranks as u64), shared: false }
    }
}

/// A prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// What was asked.
    pub settings: Settings,
    /// What takes memory, model states first.
    pub parts: Vec<Part>,
    /// Whether activations are among them.
    pub complete: bool,
}

impl Estimate {
    /// Bytes of the rank with the largest share.
    pub fn rank(&self) -> u64 {
        self.parts.iter().map(|part| part.rank).sum()
    }

    /// Bytes of all ranks of the machine.
    pub fn machine(&self) -> u64 {
        self.parts.iter().map(|part| part.machine).sum()
    }

    /// Bytes by the name of a part; 0 where there is none of that name.
    pub fn part(&self, name: &str) -> u64 {
        self.parts.iter().filter(|part| part.name == name).map(|part| part.rank).sum()
    }
}

/// Adds what the program itself and a step's activations take to the model states.
pub fn estimate(size: &ModelSize, settings: Settings, step: Option<&DryRun>, program: u64) -> Estimate {
    let mut parts = model_states(size, &settings, step);
    if let Some(step) = step {
        parts.push(Part::each("activations, logits, scratch", step.pool_bytes, settings.ranks));
    }
    parts.push(Part::each("program, data", program, settings.ranks));
    parts.retain(|part| part.machine > 0);
    if let Some(here) = settings.apart {
        for part in &mut parts {
            (part.machine, part.shared) = (part.rank.saturating_mul(here as u64), false);
        }
    }
    Estimate { settings, parts, complete: step.is_some() }
}
