//! How processes end.

use std::time::SystemTime;

use rustix::process::WaitStatus;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It returned a code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl Exit {
    pub(super) fn of(status: WaitStatus) -> Exit {
        status
            .terminating_signal()
            .map_or_else(|| Exit::Code(status.exit_status().unwrap_or(-1)), Exit::Signal)
    }

    /// Whether it ended as it should.
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

/// The end of a rank's process.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The process.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// When that was seen.
    pub at: SystemTime,
    /// The resident memory that it was last seen with, in bytes.
    pub resident: Option<u64>,
    /// Whether it had been told to end.
    pub told: bool,
}
