//! What every monitor does, and what their files say of time and machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::report::file_error::Result;
use crate::report::log::timestamp;

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

    /// The end of a run that an error ended. Not every format says how a run ended.
    ///
    /// # Errors
    /// If it cannot be written.
    fn failed(&mut self, error: &str) -> Result<()> {
        let _ = error;
        Ok(())
    }
}

/// The time since 1970.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A time in the name of a file, in UTC.
pub(super) fn name_of_time(time: Duration) -> String {
    timestamp(time.as_secs()).replace(['-', ':'], "").replace(' ', "_")
}

/// A name for a run of this process that begins now: eight letters and digits, as wandb makes them.
pub(super) fn run_id(now: Duration) -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let seed = now.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(40);
    let mut rest = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    rest ^= rest >> 29;
    let letter = |_| {
        let letter = LETTERS[(rest % 36) as usize];
        rest /= 36;
        char::from(letter)
    };
    (0..8).map(letter).collect()
}

/// The name of this machine, for files that hold it.
pub(super) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().map(|c| if c.is_alphanumeric() || "-.".contains(c) { c } else { '_' }).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}
