//! One way to do a training run.

use std::fmt;

use crate::estimate::Stage;

/// One way to do a training run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What is sharded over the ranks of a stage.
    pub stage: Stage,
    /// Whether it is sharded inside each machine, with replicas across them.
    pub by_machine: bool,
    /// Stages of a pipeline; 1: none.
    pub stages: usize,
    /// Whether activations are recomputed.
    pub recompute: bool,
    /// Sequences of a micro-batch of a rank.
    pub batch: usize,
    /// Micro-batches of a step.
    pub accumulation: usize,
}

impl fmt::Display for Choice {
    /// The placement, as people call it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.stage, self.by_machine) {
            (Stage::Gradients, true) => "MiCS, ZeRO-2",
            (Stage::Parameters, true) => "HYBRID_SHARD",
            (stage, _) => stage.name(),
        };
        match self.stages {
            1 => f.pad(name),
            n => f.pad(&format!("{n} stages, {name}")),
        }
    }
}
