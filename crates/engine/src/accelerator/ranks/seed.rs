//! Seeds of everything that is drawn.

use std::sync::{Mutex, PoisonError};

/// Whether the ranks draw the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeviceSpecific {
    /// They do.
    #[default]
    No,
    /// Each rank has its own seed for what may differ: its number is added to the seed.
    Yes,
}

/// The seed of an accelerator. Nothing is global: another one of the process has its own.
pub(crate) struct Seed(Mutex<(u64, DeviceSpecific)>);

impl Seed {
    pub fn new(seed: u64) -> Seed {
        Seed(Mutex::new((seed, DeviceSpecific::No)))
    }

    pub fn get(&self) -> (u64, DeviceSpecific) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, seed: u64, device_specific: DeviceSpecific) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (seed, device_specific);
    }
}
