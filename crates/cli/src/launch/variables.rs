//! The variables and the exit code by which a launcher and its ranks know each other.

/// The variable with the time at which the command began, for its ranks, in microseconds since 1970.
pub const STARTED: &str = "OARLOCK_STARTED";

/// The exit code of a rank that would end as it did however often it is started.
pub const FINAL: u8 = 2;

/// The variable with the number of the round in which our launcher started this rank, from 1.
pub(super) const ROUND: &str = "OARLOCK_ROUND";

/// The variable with the file into which a rank may write why it failed.
pub(super) const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// The name of this machine.
pub(super) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
