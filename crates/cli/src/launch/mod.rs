//! Starting ranks: a description of what to start, the environment of each rank, and the processes, watched until all
//! have ended.

pub mod agents;
mod cores;
mod variables;
pub use oarlock_engine::distributed::launch::devices;
pub mod environment;
mod failure;
mod lines;
mod logs;
mod output;
mod rounds;
mod run;
pub mod spec;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oarlock_comm::{Launched, StopSignals};

use crate::error::{Error, Result};

pub use failure::{Failure, exit_code};
pub use logs::Message;
pub use run::{Outcome, run, with_local_rank};
pub use spec::Launch;
use variables::{ERROR_FILE, ROUND};
pub use variables::{FINAL, STARTED};

/// Whether this process is a rank that a launcher started, ours or another.
pub fn is_rank() -> bool {
    is_our_rank() || matches!(Launched::from_env(), Ok(Some(_)))
}

/// Whether this process is a rank that this program started, whose launcher reports its failure.
pub fn is_our_rank() -> bool {
    std::env::var_os(STARTED).is_some()
}

/// Gives a rank of ours the name of its program in lists of processes: it was not started by its path.
pub fn take_name() {
    let program = std::env::args_os().next().filter(|_| is_our_rank());
    let name = program.as_deref().and_then(|program| std::path::Path::new(program).file_name());
    if let Some(name) = name {
        // Without it the process is named otherwise, and does the same.
        let _ = std::fs::write("/proc/self/comm", name.as_encoded_bytes());
    }
}

/// Whether ranks of this run were started before this process, if it is a rank that this program started.
pub fn is_later_round() -> bool {
    let round = std::env::var(ROUND).ok().filter(|_| is_our_rank());
    round.and_then(|round| round.parse::<u64>().ok()).is_some_and(|round| round > 1)
}

/// Writes why this rank failed where the launcher looks for it, in the form of torch's `record`; whether it
/// does. Where all ranks share memory the launcher reads it there.
pub fn leave_message(text: &str) -> bool {
    let Some(path) = std::env::var_os(ERROR_FILE).filter(|_| is_our_rank()) else { return false };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let info = serde_json::json!({ "timestamp": seconds.to_string() });
    let value = serde_json::json!({ "message": { "message": text, "extraInfo": info } });
    oarlock_files::overwrite_handed(std::path::Path::new(&path), value.to_string().as_bytes()).is_ok()
}

/// Calls `stop` with each signal that asks this process to end, which no launcher watches. It is to end the process.
///
/// # Errors
/// A system that does not let signals be caught, or has no thread.
pub fn on_stop(stop: impl Fn(i32) + Send + 'static) -> Result<()> {
    /// How soon a signal is seen.
    const EVERY: Duration = Duration::from_millis(50);
    let signals = StopSignals::catch()?;
    let watch = move || loop {
        if let Some(signal) = signals.take() {
            stop(signal);
        }
        std::thread::sleep(EVERY);
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(watch)
        .map_err(Error::io("start", "a thread"))?;
    Ok(())
}
