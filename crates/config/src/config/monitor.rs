//! What a run reports beside its own logs: trackers, and what DeepSpeed's engine reports.

use std::path::PathBuf;

use oarlock_comm::Recorded;

/// What a run reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MonitorArgs {
    /// Where the log records go, over steps and under the names of transformers.
    pub trackers: Vec<Tracker>,
    /// What DeepSpeed's configuration asks for, if there is one.
    pub engine: EngineReports,
}

/// What DeepSpeed's engine reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineReports {
    /// Where every step goes, over samples and under DeepSpeed's names.
    pub monitors: Vec<Tracker>,
    /// Steps between lines with rate, moments and skipped steps.
    pub steps_per_print: Option<u64>,
    /// Whether the times of the phases are reported.
    pub wall_clock_breakdown: bool,
    /// The profile of the model, if one is wanted.
    pub flops_profiler: Option<FlopsArgs>,
    /// The table of collectives, if one is wanted.
    pub comms_logger: Option<CommsArgs>,
}

/// A place that scalars go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tracker {
    /// A file of lines for each name, in this folder.
    Csv(PathBuf),
    /// This file of lines of JSON.
    Jsonl(PathBuf),
    /// Event files in this folder.
    TensorBoard(PathBuf),
    /// An offline run of Weights & Biases in the folder `wandb`.
    Wandb {
        /// The project.
        project: String,
        /// The team or user.
        entity: String,
        /// The group inside the project.
        group: String,
        /// The name of the run.
        name: String,
    },
    /// An offline run of SwanLab.
    SwanLab {
        /// The folder of offline runs.
        folder: PathBuf,
        /// The project.
        project: String,
        /// The organization or user; empty for the account that uploads it.
        workspace: String,
        /// The name of the run.
        name: String,
    },
}

/// The profile of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct FlopsArgs {
    /// The step that is profiled comes after so many steps.
    pub after_steps: u64,
    /// How deep the aggregated part goes; `None`: all the way.
    pub depth: Option<usize>,
    /// Kinds of modules that it shows at each depth.
    pub top: usize,
    /// Show every module.
    pub detailed: bool,
    /// Forward passes that a backward pass repeats, as a share, in the account of operations.
    pub recompute_factor: f64,
    /// The file to write it to instead of the log.
    pub file: Option<PathBuf>,
}

/// The table of collectives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommsArgs {
    /// Which collectives.
    pub recorded: Recorded,
    /// Every `steps_per_print`, too.
    pub verbose: bool,
}
