//! What a checkpoint of a loop keeps besides models: parts that give their state as JSON, and go on from it.

use std::any::type_name;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Error, Result};

/// A part of a loop that a checkpoint keeps: optimizers, schedules and loaders are from the moment in which they are
/// prepared, and what [`register_for_checkpointing`](crate::Accelerator::register_for_checkpointing) is given.
pub trait Stateful: Send + Sync {
    /// What is to be kept. Every rank gets back what rank 0 gave. Numbers come back bitwise identical, if they are
    /// finite.
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
