//! How a launch from code fails: which rank was first, and what it said.

use super::Error;

/// A launch from code that failed. The rank that it names failed first; the others were told, and ended after it.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The function returned an error.
    #[error("rank {rank} failed: {error}")]
    Failed {
        /// The rank.
        rank: usize,
        /// What the function returned.
        error: Box<Error>,
    },
    /// The function panicked.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The rank.
        rank: usize,
        /// What it panicked with.
        message: String,
    },
    /// The process of a rank failed: by an error or a panic of the function, an exit code of its own, or a signal.
    #[error("rank {rank} failed: {cause}")]
    Process {
        /// The rank.
        rank: usize,
        /// What it said, or what was seen of it.
        cause: String,
    },
    /// The process of a rank ended well, but never was at the call that started it.
    #[error(
        "rank {rank} ended without coming to the call of spawn_processes at {call}: each rank runs the program again, with \
         the same arguments, and must come to that call as this process did; let nothing before it depend on the time, \
         on input or on files that the program changes"
    )]
    NeverCame {
        /// The rank.
        rank: usize,
        /// The call.
        call: String,
    },
    /// A signal to this process ended the ranks.
    #[error("signal {signal} ({name}) to this process ended the ranks", name = oarlock_comm::signal_name(*.signal).unwrap_or("without a name"))]
    Stopped {
        /// The signal.
        signal: i32,
    },
}
