//! The ledger: what each rank was last doing, as others see it.

use std::fmt;

use crate::call::Call;

/// The state of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RankState {
    /// Has not joined yet.
    Absent,
    /// Has joined, and its process is alive.
    Running,
    /// Is stopped by a signal (SIGSTOP, a debugger).
    Stopped,
    /// Has finished: no other rank waits for it.
    Finished,
    /// Has left without finishing.
    Left,
    /// Its process has ended.
    Dead,
}

/// One rank's entry in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStatus {
    /// The rank.
    pub rank: usize,
    /// Its state.
    pub state: RankState,
    /// Its process, once it has joined.
    pub pid: Option<u32>,
    /// What it last said that it is doing.
    pub phase: String,
    /// Its last collectives, oldest first.
    pub calls: Vec<Call>,
}

impl fmt::Display for RankStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            RankState::Absent => "has not joined",
            RankState::Running => "running",
            RankState::Stopped => "stopped by a signal",
            RankState::Finished => "finished",
            RankState::Left => "left without finishing",
            RankState::Dead => "dead",
        };
        write!(f, "rank {} ({state}", self.rank)?;
        if let Some(pid) = self.pid {
            write!(f, ", pid {pid}")?;
        }
        if !self.phase.is_empty() {
            write!(f, ", in {:?}", self.phase)?;
        }
        if let Some(call) = self.calls.last() {
            write!(f, ", last call: {}", call.without_rank())?;
        }
        f.write_str(")")
    }
}
