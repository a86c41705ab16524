//! Ranks as processes of this machine that meet in shared memory.

use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use oarlock_comm::shm::ShmHost;
use oarlock_comm::{Exit, FailedRank, Grace, Launched, RankGroup, StopSignals};

use crate::error::{Error, Result};

/// The variable that tells a rank when the command began, in microseconds since 1970.
pub const STARTED: &str = "OARLOCK_STARTED";

/// How the ranks ended.
#[derive(Debug)]
pub enum Outcome {
    /// All as they should.
    Done,
    /// One failed first; the others were ended.
    Failed(FailedRank),
    /// A signal to this process ended them.
    Stopped(i32),
}

/// Whether this process is a rank that a launcher started, ours or another.
pub fn is_rank() -> bool {
    is_our_rank() || matches!(Launched::from_env(), Ok(Some(_)))
}

/// Whether this process is a rank that this program started, which then tells of its failure.
pub fn is_our_rank() -> bool {
    std::env::var_os(STARTED).is_some()
}

/// Runs this program again with `arguments` as `n_ranks` processes and waits until all have ended. Nothing is left of
/// them, whatever happens to any of them or to this process.
///
/// # Errors
/// When the processes cannot be started.
pub fn run_ranks(n_ranks: usize, arguments: &[String], started: SystemTime) -> Result<Outcome> {
    let program = std::env::current_exe().map_err(Error::io("find", "this program"))?;
    let signals = StopSignals::catch()?;
    let host = Arc::new(ShmHost::create(n_ranks)?);
    let micros = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros().to_string();
    let commands = (0..n_ranks).map(|_| {
        let mut command = Command::new(&program);
        command.args(arguments).env(STARTED, &micros).stdin(std::process::Stdio::null());
        command
    });
    let ending = RankGroup::spawn(host, commands.collect(), Grace::SHORT, &signals)?.wait()?;
    if let Some(failed) = ending.failed {
        return Ok(Outcome::Failed(failed));
    }
    match (ending.signal, ending.exits.iter().position(|exit| !exit.is_success())) {
        (Some(signal), _) => Ok(Outcome::Stopped(signal)),
        (None, Some(rank)) => Err(Error::Usage(format!("rank {rank} failed: {}", ending.exits[rank]))),
        (None, None) => Ok(Outcome::Done),
    }
}

/// What to say about a rank that failed, with a hint where its end has a likely cause.
pub fn explain(failed: &FailedRank) -> String {
    match failed.exit {
        Exit::Signal(9) => {
            format!("{}; signal 9 is often the kernel's answer to a full memory", failed.cause)
        }
        _ => failed.cause.to_string(),
    }
}
