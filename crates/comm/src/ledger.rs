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
    /// It runs on another machine: what its process does there is not known here.
    pub is_elsewhere: bool,
}

/// What ranks say of one whose process is gone.
pub(crate) const SILENT_END: &str = "ended without saying why";

impl RankState {
    /// Why a rank in this state fails those that wait, if it does. `is_missing` if it has not entered their collective.
    pub(crate) fn failure(self, pid: u32, is_missing: bool) -> Option<String> {
        match self {
            RankState::Dead => Some(format!("its process {pid} {SILENT_END}")),
            RankState::Left => Some("it left without finishing (a panic, an early return)".into()),
            RankState::Finished if is_missing => Some("it finished while others still waited for it".into()),
            _ => None,
        }
    }
}

impl RankStatus {
    /// Its phase and its last call, each after a comma.
    pub(crate) fn doing(&self) -> String {
        let phase = Some(&self.phase).filter(|phase| !phase.is_empty());
        let phase = phase.map_or_else(String::new, |phase| format!(", in {phase:?}"));
        let call = self.calls.last().map(|call| format!(", last call: {}", call.without_rank()));
        phase + &call.unwrap_or_default()
    }
}

impl fmt::Display for RankStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            RankState::Absent => "has not joined",
            RankState::Running if self.is_elsewhere => "on another machine",
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
        write!(f, "{})", self.doing())
    }
}

/// What may keep ranks of other machines from those that wait for them, although each has come.
pub(crate) fn way_to(missing: &[RankStatus]) -> &'static str {
    let is_far = |status: &RankStatus| status.is_elsewhere && status.state == RankState::Running;
    match missing.iter().any(is_far) {
        true => {
            "; if ranks of two machines wait for each other, the network between them loses what they send: look at its MTU \
             and its firewalls"
        }
        false => "",
    }
}

/// Several ranks in a message.
pub(crate) fn list(statuses: &[RankStatus]) -> String {
    statuses.iter().map(RankStatus::to_string).collect::<Vec<_>>().join("; ")
}
