//! Notices: what a rank tells all others outside of collectives. It has failed, finished or left.

use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use crate::error::Error;
use crate::ledger::{RankState, RankStatus};
use crate::stamp::{Stamp, StampWords, text, write_text};

/// The most ranks of a world.
pub(super) const MAX_RANKS: usize = 1024;

/// The kinds of notices.
pub(super) const FINISHED: u64 = 1;
pub(super) const LEFT: u64 = 2;
const PEER: u64 = 3;
const MISMATCH: u64 = 4;
const TIMEOUT: u64 = 5;

const STATES: [RankState; 6] = [
    RankState::Absent,
    RankState::Running,
    RankState::Stopped,
    RankState::Finished,
    RankState::Left,
    RankState::Dead,
];

/// A notice as it is sent: of fixed size, and short.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Notice {
    pub(super) kind: u64,
    /// The rank that sends it.
    pub(super) from: u64,
    /// The number of the session that it is about, from 1.
    pub(super) session: u64,
    ranks: [u64; 2],
    waited_ms: u64,
    stamps: [StampWords; 2],
    /// For each rank of the world: 0, or if it was waited for the index of its state in [`STATES`] plus 1.
    missing: [u8; MAX_RANKS],
    cause: [u8; 512],
}

impl Notice {
    pub(super) fn plain(kind: u64) -> Notice {
        Notice { kind, ..Notice::zeroed() }
    }

    /// The same, sent by a rank in a session.
    pub(super) fn of(self, from: usize, session: u64) -> Notice {
        Notice { from: from as u64, session, ..self }
    }

    /// `rank` failed.
    pub(super) fn peer(rank: usize, cause: &str) -> Notice {
        let mut notice = Notice { ranks: [rank as u64, 0], ..Notice::plain(PEER) };
        write_text(&mut notice.cause, cause);
        notice
    }

    /// Two ranks called different things.
    pub(super) fn mismatch(first: (usize, Stamp), other: (usize, Stamp)) -> Notice {
        let ranks = [first.0 as u64, other.0 as u64];
        Notice { ranks, stamps: [first.1.words(), other.1.words()], ..Notice::plain(MISMATCH) }
    }

    /// `rank` waited too long.
    pub(super) fn timeout(rank: usize, stamp: &Stamp, waited: Duration, missing: &[RankStatus]) -> Notice {
        let mut notice = Notice {
            ranks: [rank as u64, 0],
            waited_ms: waited.as_millis() as u64,
            stamps: [stamp.words(); 2],
            ..Notice::plain(TIMEOUT)
        };
        for status in missing {
            let state = STATES.iter().position(|&state| state == status.state).unwrap_or(1);
            if let Some(mark) = notice.missing.get_mut(status.rank) {
                *mark = state as u8 + 1;
            }
        }
        notice
    }

    pub(super) fn is_failure(&self) -> bool {
        self.kind >= PEER
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Notice> {
        bytemuck::try_pod_read_unaligned(bytes).ok()
    }

    /// The failure as an error, with the statuses of the ranks.
    pub(super) fn error(&self, statuses: &dyn Fn() -> Vec<RankStatus>) -> Error {
        let call = |i: usize| Box::new(Stamp::from_words(self.stamps[i]).call(self.ranks[i] as usize));
        match self.kind {
            MISMATCH => Error::Mismatch { first: call(0), other: call(1) },
            TIMEOUT => {
                let missing = statuses().into_iter().filter_map(|mut status| {
                    let mark = usize::from(*self.missing.get(status.rank)?).checked_sub(1)?;
                    status.state = STATES.get(mark).copied().unwrap_or(RankState::Running);
                    Some(status)
                });
                let seconds = self.waited_ms as f64 / 1e3;
                Error::Timeout { waiting: call(0), seconds, missing: missing.collect() }
            }
            _ => Error::PeerFailed { rank: self.ranks[0] as usize, cause: text(&self.cause) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_keeps_its_content() {
        let status = |rank: usize, state| RankStatus {
            rank,
            state,
            pid: Some(7),
            phase: "step 3".into(),
            calls: Vec::new(),
            is_elsewhere: rank == 3,
        };
        let all = || (0..4).map(|rank| status(rank, RankState::Running)).collect();
        let over =
            |notice: Notice| Notice::from_bytes(bytemuck::bytes_of(&notice)).unwrap().error(&all).to_string();
        assert_eq!(over(Notice::peer(3, "no memory")), "rank 3 failed: no memory");
        let long = format!("{}ö", "x".repeat(511));
        assert_eq!(over(Notice::peer(0, &long)), format!("rank 0 failed: {}", "x".repeat(511)));
        let waited_for = Duration::from_millis(1500);
        let late = [status(2, RankState::Stopped)];
        let said = over(Notice::timeout(1, &Stamp::zeroed(), waited_for, &late));
        assert!(said.starts_with("rank 1 called barrier"), "{said}");
        let waited = "and waited 1.5 s for rank 2 (stopped by a signal, pid 7, in \"step 3\")";
        assert!(said.ends_with(waited), "{said}");
        let far = [status(3, RankState::Running)];
        let said = over(Notice::timeout(1, &Stamp::zeroed(), waited_for, &far));
        assert!(said.contains("for rank 3 (on another machine, pid 7"), "{said}");
        assert!(
            said.contains("wait for each other, the network between them loses what they send"),
            "{said}"
        );
        assert!(Notice::from_bytes(&[0; 9]).is_none());
    }
}
