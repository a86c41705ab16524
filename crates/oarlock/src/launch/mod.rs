//! Starting ranks: a description of what to start, the environment of each rank, and the processes, watched until all
//! have ended.

mod cores;
pub mod devices;
pub mod environment;
mod failure;
mod lines;
mod logs;
mod output;
pub mod port;
mod rounds;
mod run;
pub mod spec;

pub use failure::Failure;
pub use logs::Message;
pub use run::{Outcome, run};
pub use spec::Launch;

/// The variable that tells a rank when the command began, in microseconds since 1970.
pub const STARTED: &str = "OARLOCK_STARTED";

/// Whether this process is a rank that a launcher started.
pub fn is_rank() -> bool {
    std::env::var_os(STARTED).is_some()
}
