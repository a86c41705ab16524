//! `save_state` and `load_state`: everything that a loop needs to go on.

use serde_json::{Value, json};

use super::scheduler::PreparedScheduler;
use crate::error::{Error, Result};

/// A part of a loop that a checkpoint keeps: schedules and loaders are, and what
/// `Accelerator::register_for_checkpointing` is given.
pub trait Stateful: Send + Sync {
    /// What is to be kept. Every rank gets back what rank 0 gave.
    ///
    /// # Errors
    /// What cannot be written as JSON.
    fn state_dict(&self) -> Result<Value>;

    /// Goes on from what was kept.
    ///
    /// # Errors
    /// A state of another kind.
    fn load_state_dict(&self, state: &Value) -> Result<()>;
}

impl Stateful for PreparedScheduler {
    fn state_dict(&self) -> Result<Value> {
        Ok(json!({ "steps": self.steps() }))
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        let steps = state.get("steps").and_then(Value::as_u64);
        self.set_steps(steps.ok_or_else(|| Error::Usage(format!("a schedule cannot go on from {state}")))?);
        Ok(())
    }
}
