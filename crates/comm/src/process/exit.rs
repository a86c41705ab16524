//! How processes and runs end.

use std::time::{Duration, SystemTime};

use rustix::process::WaitStatus;

use crate::error::Error;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The process returned this code.
    Code(i32),
    /// This signal ended the process.
    Signal(i32),
}

impl Exit {
    pub(super) fn of(status: WaitStatus) -> Exit {
        status
            .terminating_signal()
            .map_or_else(|| Exit::Code(status.exit_status().unwrap_or(-1)), Exit::Signal)
    }

    /// Whether it ended with code 0.
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "it ended with exit code {code}"),
            Exit::Signal(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "it was ended by signal {signal} ({name})"),
                None => write!(f, "it was ended by signal {signal}"),
            },
        }
    }
}

/// How the process of a rank ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The process.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// When the launcher saw it.
    pub at: SystemTime,
    /// Its resident memory at the last sample, in bytes.
    pub resident: Option<u64>,
    /// Whether the launcher had asked it to end.
    pub asked_to_end: bool,
}

/// The grace periods of the other ranks when one has failed.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    /// From the failure to SIGTERM.
    pub term: Duration,
    /// From SIGTERM to SIGKILL.
    pub kill: Duration,
}

impl Grace {
    /// All ranks have ended in less than two seconds.
    pub const SHORT: Grace = Grace { term: Duration::from_millis(1000), kill: Duration::from_millis(500) };
}

/// The rank that failed first.
#[derive(Clone, Debug)]
pub struct FailedRank {
    /// The rank.
    pub rank: usize,
    /// How its process ended.
    pub end: Ended,
    /// The first failure, as all ranks know it.
    pub cause: Error,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The rank that failed first, if one did, unless a signal or [`RankGroup::stop`](crate::RankGroup::stop) ended the run.
    pub failed: Option<FailedRank>,
    /// How each rank ended, by rank.
    pub ranks: Vec<Ended>,
    /// The signal to the launcher that ended the run, if one did.
    pub signal: Option<i32>,
}

impl Ending {
    /// Whether all ranks ended with code 0, and no signal ended the run.
    pub fn is_success(&self) -> bool {
        self.failed.is_none() && self.signal.is_none() && self.ranks.iter().all(|end| end.exit.is_success())
    }
}
