//! Monitors: the scalars of a run in files that other programs show. Which scalars, and what they are plotted over,
//! is decided by the caller.

mod checksum;
pub mod csv;
pub mod jsonl;
mod protobuf;
pub mod tensorboard;
pub mod wandb;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use super::Result;

/// A place that scalars go to. Only rank 0 has any.
pub trait Monitor: Send {
    /// What the run was configured with, once and before the first scalars. Not every format has room for it.
    ///
    /// # Errors
    /// If it cannot be written.
    fn config(&mut self, config: &Map<String, Value>) -> Result<()> {
        let _ = config;
        Ok(())
    }

    /// Values by name at `x`, the steps or samples so far, which never falls.
    ///
    /// # Errors
    /// If they cannot be written.
    fn scalars(&mut self, x: u64, values: &[(&str, f64)]) -> Result<()>;

    /// The end of a run that went well.
    ///
    /// # Errors
    /// If it cannot be written.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The time since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The name of this machine, for files that hold it.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().map(|c| if c.is_alphanumeric() || "-.".contains(c) { c } else { '_' }).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}
