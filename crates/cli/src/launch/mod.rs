//! Starting ranks: a description of what to start, the environment of each rank, and the processes, watched until all
//! have ended.

pub mod agents;
mod cores;
pub use oarlock::launch::devices;
pub mod environment;
mod failure;
mod lines;
mod logs;
mod output;
mod rounds;
mod run;
pub mod spec;

use oarlock_comm::Launched;

pub use failure::{Failure, exit_code};
pub use logs::Message;
pub use run::{Outcome, run, with_local_rank};
pub use spec::Launch;

/// The variable with the time at which the command began, for its ranks, in microseconds since 1970.
pub const STARTED: &str = "OARLOCK_STARTED";

/// Whether this process is a rank that a launcher started, ours or another.
pub fn is_rank() -> bool {
    is_our_rank() || matches!(Launched::from_env(), Ok(Some(_)))
}

/// Whether this process is a rank that this program started, whose launcher reports its failure.
pub fn is_our_rank() -> bool {
    std::env::var_os(STARTED).is_some()
}

/// How often the ranks of this run were started again before this process, if it is a rank that this program started.
pub fn restarts_of_this_rank() -> u32 {
    let count = std::env::var("TORCHELASTIC_RESTART_COUNT").ok().filter(|_| is_our_rank());
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The name of this machine.
fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
