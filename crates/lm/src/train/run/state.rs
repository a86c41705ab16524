//! What a run holds on a rank while it trains.

use std::path::PathBuf;
use std::time::SystemTime;

use oarlock_config::config::TrainConfig;
use oarlock_engine::checkpoint::Saver;
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_engine::{Accelerator, Prepared, PreparedOptimizer, PreparedScheduler};

use super::results::NonFiniteResults;
use crate::adapters::Adaptation;
use crate::estimate::Forecast;
use crate::model::Decoder;
use crate::model::hf::HfConfig;
use crate::train::data::RunData;
use crate::train::journal::Journal;
use crate::train::lock::OutputLock;
use crate::train::model::ReferenceModel;
use crate::train::objective::Objective;
use crate::train::pool_limit::PoolLimit;
use crate::train::record::RunRecord;
use crate::train::token_loader::PreparedTokenLoader;

pub(super) struct Run<'a> {
    pub(super) config: &'a TrainConfig,
    pub(super) accelerator: &'a Accelerator,
    pub(super) objective: Box<dyn Objective>,
    pub(super) hf: HfConfig,
    /// The longest sequence that the model can take.
    pub(super) n_positions: usize,
    /// The adapter that is trained beside the model.
    pub(super) adaptation: Option<Adaptation>,
    /// What the loss compares the model with.
    pub(super) compared: ReferenceModel,
    pub(super) model: Prepared<Decoder>,
    pub(super) optimizer: PreparedOptimizer,
    pub(super) scheduler: PreparedScheduler,
    pub(super) loader: PreparedTokenLoader,
    pub(super) data: RunData,
    /// What checkpoints tell of this run.
    pub(super) record: RunRecord,
    /// The checkpoint from which it went on.
    pub(super) resumed: Option<PathBuf>,
    /// Where this run began or went on: the number of ranks may have changed since.
    pub(super) first_position: u64,
    /// Steps so far, skipped ones included.
    pub(super) done: u64,
    pub(super) total_steps: u64,
    /// Steps that changed no weight, as their gradients were not finite.
    pub(super) skipped: u64,
    /// Whether the run ends before that.
    pub(super) stopped: bool,
    pub(super) journal: Option<Journal>,
    pub(super) non_finite: NonFiniteResults,
    /// What memory was predicted to be, on rank 0.
    pub(super) forecast: Option<Forecast>,
    pub(super) started: SystemTime,
    pub(super) timer: PhaseTimer,
    /// Where rows have lengths of their own.
    pub(super) pool_limit: Option<PoolLimit>,
    pub(super) saver: Saver,
    /// Held by rank 0 until everything else has ended.
    pub(super) lock: Option<OutputLock>,
}

impl Run<'_> {
    pub(super) fn steps_per_epoch(&self) -> u64 {
        self.loader.sampler().steps_per_epoch()
    }

    /// Passes over the data so far.
    pub(super) fn epoch(&self) -> f64 {
        self.loader.sampler().epochs(self.loader.position())
    }
}
