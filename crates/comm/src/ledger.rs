//! What each rank was last doing, as others see it.

use std::fmt;

use crate::call::Call;

/// Where a rank stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RankState {
    /// Has not joined yet.
    Absent,
    /// Works.
    Running,
    /// Is stopped by a signal (SIGSTOP, a debugger).
    Stopped,
    /// Left in good order.
    Finished,
    /// Left without saying so.
    Left,
    /// Its process has ended.
    Dead,
}

/// One rank's entry in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStatus {
    /// The rank.
    pub rank: usize,
    /// Where it stands in its life.
    pub state: RankState,
    /// Its process, once it has joined.
    pub pid: Option<u32>,
    /// Its last note about itself.
    pub phase: String,
    /// Its last collectives, oldest first.
    pub calls: Vec<Call>,
}

impl fmt::Display for RankStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            RankState::Absent => "has not joined",
            RankState::Running => "runs",
            RankState::Stopped => "is stopped by a signal",
            RankState::Finished => "has finished",
            RankState::Left => "has left",
            RankState::Dead => "is dead",
        };
        write!(f, "rank {} ({state}", self.rank)?;
        if let Some(pid) = self.pid {
            write!(f, ", pid {pid}")?;
        }
        if !self.phase.is_empty() {
            write!(f, ", in {:?}", self.phase)?;
        }
        if let Some(call) = self.calls.last() {
            write!(f, ", last {call}")?;
        }
        f.write_str(")")
    }
}
