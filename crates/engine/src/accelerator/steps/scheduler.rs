//! The schedule of a prepared optimizer: it moves when the optimizer does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};

use crate::accelerator::handle::Inner;
use crate::accelerator::saving::stateful::Stateful;
use crate::accelerator::settings::config::SchedulerSteps;
use crate::optim::lr_scheduler::Scheduler;
use crate::{Error, Result};

/// A prepared schedule. Cloning gives another handle.
#[derive(Clone)]
pub struct PreparedScheduler {
    pub(crate) position: SchedulePosition,
    inner: Arc<Inner>,
}

/// A schedule and where it stands: what checkpoints keep.
#[derive(Clone)]
pub(crate) struct SchedulePosition {
    scheduler: Scheduler,
    steps: Arc<AtomicU64>,
}

impl SchedulePosition {
    pub fn steps(&self) -> u64 {
        self.steps.load(Relaxed)
    }

    pub fn set_steps(&self, steps: u64) {
        self.resume(steps);
        self.scheduler.go_to(steps);
    }

    /// Goes there, and leaves the learning rates as they are.
    pub fn resume(&self, steps: u64) {
        self.steps.store(steps, Relaxed);
        self.scheduler.set_betas(steps);
    }
}

impl Stateful for SchedulePosition {
    fn state_dict(&self) -> Result<Value> {
        Ok(json!({ "steps": self.steps() }))
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        let steps = state.get("steps").and_then(Value::as_u64);
        // The learning rates come back with the optimizer, also those that somebody else has set.
        self.resume(steps.ok_or_else(|| Error::Usage(format!("a schedule cannot go on from {state}")))?);
        Ok(())
    }
}

impl PreparedScheduler {
    pub(crate) fn new(scheduler: Scheduler, inner: Arc<Inner>) -> PreparedScheduler {
        PreparedScheduler { position: SchedulePosition { scheduler, steps: Arc::default() }, inner }
    }

    /// Moves on by one step of the optimizer. While gradients accumulate, and after a step that was skipped, it stays.
    /// Accelerate moves by the number of processes instead, which [`SchedulerSteps::PerProcess`] asks for.
    pub fn step(&self) {
        if !self.inner.window.gradients().sync_gradients || self.position.scheduler.lr_state.skipped() {
            return;
        }
        let by = match self.inner.config.scheduler_steps {
            SchedulerSteps::PerProcess if !self.inner.config.dataloader.split_batches => {
                self.inner.ranks.comm.world_size() as u64
            }
            _ => 1,
        };
        self.set_steps(self.steps().saturating_add(by));
    }

    /// The steps that it has moved.
    pub fn steps(&self) -> u64 {
        self.position.steps()
    }

    /// Goes to a place, as when a run goes on.
    pub fn set_steps(&self, steps: u64) {
        self.position.set_steps(steps);
    }

    /// The learning rate that it has set last, of group 0.
    pub fn last_lr(&self) -> f64 {
        self.last_lrs().first().copied().unwrap_or_default()
    }

    /// The learning rates that it has set last, of all groups: torch's `get_last_lr`.
    pub fn last_lrs(&self) -> Vec<f64> {
        self.position.scheduler.lrs(self.steps())
    }
}
