//! What every monitor does, and what their files say of time and machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::report::file_error::Result;

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
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The name of this machine, for files that hold it.
pub(super) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().map(|c| if c.is_alphanumeric() || "-.".contains(c) { c } else { '_' }).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}
