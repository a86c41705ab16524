//! What a checkpoint of a loop keeps besides models: parts that give their state as JSON, and go on from it.

use std::any::type_name;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Accelerator;
use super::prepared_state::PreparedState;
use super::scheduler::SchedulePosition;
use crate::error::{Error, Result};
use crate::optim::LossScalerState;
use crate::optim::LrState;

/// A part of a loop that a checkpoint keeps: optimizers, schedules and loaders are from the moment in which they are
/// prepared, and what [`Accelerator::register_for_checkpointing`] is given.
pub trait Stateful: Send + Sync {
    /// What is to be kept. Every rank gets back what rank 0 gave. Numbers come back to the bit, if they are finite.
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

/// A value of a training loop that a checkpoint keeps: anything that serde writes and reads.
///
/// ```
/// use std::sync::Arc;
///
/// use oarlock::{Accelerator, AcceleratorConfig, Checkpointed};
///
/// # fn main() -> oarlock::Result<()> {
/// let accelerator = Accelerator::new(&AcceleratorConfig::default())?;
/// let best = Arc::new(Checkpointed::new(f64::MAX));
/// accelerator.register_for_checkpointing(best.clone());
/// *best.lock() = 0.25;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Checkpointed<T>(Mutex<T>);

impl<T> Checkpointed<T> {
    /// Keeps a value.
    pub fn new(value: T) -> Checkpointed<T> {
        Checkpointed(Mutex::new(value))
    }

    /// The value, to be read or changed; not to be held while a checkpoint is saved or loaded.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Serialize + DeserializeOwned + Send> Stateful for Checkpointed<T> {
    fn state_dict(&self) -> Result<Value> {
        let written = serde_json::to_value(&*self.lock());
        written.map_err(|error| {
            Error::Usage(format!("a value of type {} cannot be kept: {error}", type_name::<T>()))
        })
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        let value = T::deserialize(state)
            .map_err(|error| Error::Usage(format!("{state} is no {}: {error}", type_name::<T>())))?;
        *self.lock() = value;
        Ok(())
    }
}

impl Accelerator {
    /// Has [`Accelerator::save_state`] keep the state of an object, and [`Accelerator::load_state`] give it back. A loop
    /// that loads registers as many objects as the one that saved, in the same order. Any serde value can be registered
    /// as a [`Checkpointed`].
    pub fn register_for_checkpointing<T: Stateful + 'static>(&self, object: Arc<T>) {
        self.inner.add_stateful("custom", object);
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

/// What an optimizer keeps besides its engine's state.
pub(super) struct Rate {
    pub state: Arc<PreparedState>,
    pub lr_state: LrState,
}

#[derive(Serialize, Deserialize)]
struct RateState {
    /// Of group 0.
    lr: f64,
    /// Of the others; older checkpoints know one rate.
    #[serde(default)]
    group_lrs: Option<Vec<f64>>,
    skipped: bool,
    loss_scale: Option<LossScalerState>,
}

impl Stateful for Rate {
    fn state_dict(&self) -> Result<Value> {
        let loss_scale = self.state.optimizer()?.loss_scale_state();
        let lrs = self.lr_state.lrs();
        let group_lrs = Some(lrs.iter().skip(1).copied().collect());
        let state =
            RateState { lr: self.lr_state.lr(), group_lrs, skipped: self.lr_state.skipped(), loss_scale };
        serde_json::to_value(state).map_err(|error| Error::Usage(format!("a learning rate: {error}")))
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        let RateState { lr, group_lrs, skipped, loss_scale } = RateState::deserialize(state)
            .map_err(|error| Error::Usage(format!("an optimizer cannot go on from {state}: {error}")))?;
        match group_lrs {
            Some(others) => self.lr_state.resume(&[&[lr], &*others].concat())?,
            None => self.lr_state.set_lrs(|_, _| lr),
        }
        self.lr_state.set_skipped(skipped);
        // A run in another dtype has no scale, or begins with its own.
        if let Some(loss_scale) = loss_scale {
            self.state.optimizer()?.resume_loss_scale(loss_scale);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::Linear;
    use crate::{AcceleratorConfig, optim};

    #[test]
    fn a_state_of_one_rate_sets_it_for_all_groups() {
        let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
        let accelerator = Accelerator::over(oarlock_comm::Communicator::solo(), &config).unwrap();
        let net = Linear::new(2, 3).unwrap();
        let bias = optim::Parameters::of(&net).filter(|named| named.name == "bias");
        let optimizer = optim::adamw(&net).group(bias, |group| group.lr(0.5));
        let (_net, optimizer) = accelerator.prepare((net, optimizer)).unwrap();
        let state = &accelerator.inner.stateful()[0].1;
        let kept = state.state_dict().unwrap();
        assert_eq!((&kept["lr"], &kept["group_lrs"]), (&json!(1e-3), &json!([0.5])));
        // As checkpoints were before there were groups.
        let one = json!({ "lr": 0.25, "skipped": true, "loss_scale": null });
        state.load_state_dict(&one).unwrap();
        assert_eq!((optimizer.group_lrs(), optimizer.step_was_skipped()), (vec![0.25; 2], true));
        let other = json!({ "lr": 0.125, "group_lrs": [], "skipped": false, "loss_scale": null });
        let told = state.load_state_dict(&other).unwrap_err().to_string();
        assert!(told.contains("with 1 parameter groups, and this one has 2"), "{told}");
        assert_eq!(optimizer.group_lrs(), [0.25; 2]);
        state.load_state_dict(&kept).unwrap();
        assert_eq!(optimizer.group_lrs(), [1e-3, 0.5]);
    }
}
