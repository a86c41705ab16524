//! What the control part and /proc say about each rank, and the failure of the run as an error.

use std::sync::atomic::Ordering;

use super::failure::Failure;
use super::layout::{ABSENT, FINISHED, KEPT_CALLS, RUNNING};
use super::segment::Segment;
use crate::error::Error;
use crate::ledger::{RankState, RankStatus};
use crate::procfs;
use crate::stamp::Stamp;

/// The state of a rank. A zombie is dead.
pub(super) fn state(segment: &Segment, rank: usize) -> RankState {
    match published(segment, rank) {
        RankState::Running => {}
        published => return published,
    }
    match (process_state(segment, rank), published(segment, rank)) {
        (RankState::Dead, RankState::Running) => RankState::Dead,
        // It finished or left, and its process ended, between the two reads.
        (RankState::Dead, published) => published,
        (alive, _) => alive,
    }
}

/// The state that a rank has published itself.
fn published(segment: &Segment, rank: usize) -> RankState {
    match segment.cell(rank).state.load(Ordering::Acquire) {
        ABSENT => RankState::Absent,
        FINISHED => RankState::Finished,
        RUNNING => RankState::Running,
        _ => RankState::Left,
    }
}

/// The state of its process.
fn process_state(segment: &Segment, rank: usize) -> RankState {
    let cell = segment.cell(rank);
    match cell.pid.load(Ordering::Relaxed) {
        // It is joining: its process number is not written yet.
        0 => RankState::Running,
        pid => procfs::state(pid, cell.start_time.load(Ordering::Relaxed)),
    }
}

/// The state, phase and last collectives of a rank.
pub(super) fn status(segment: &Segment, rank: usize) -> RankStatus {
    let cell = segment.cell(rank);
    let n = cell.n_calls.load(Ordering::Acquire) as usize;
    let kept = n.saturating_sub(KEPT_CALLS)..n;
    let calls = kept
        .filter_map(|i| cell.calls[i % KEPT_CALLS].read())
        .map(|w| Stamp::from_words(w).call(rank))
        .collect();
    let pid = Some(cell.pid.load(Ordering::Relaxed)).filter(|&pid| pid != 0);
    RankStatus {
        rank,
        state: state(segment, rank),
        pid,
        phase: cell.phase.read_text(),
        calls,
        is_elsewhere: false,
    }
}

/// The failure of the run as an error, if there is one.
pub(super) fn failure(segment: &Segment) -> Option<Error> {
    let call = |rank: usize, stamp: Stamp| Box::new(stamp.call(rank));
    Some(match segment.header().failure.read()? {
        Failure::Peer { rank, cause } => Error::PeerFailed { rank, cause },
        Failure::Mismatch { first, other } => {
            Error::Mismatch { first: call(first.0, first.1), other: call(other.0, other.1) }
        }
        Failure::Timeout { rank, stamp, waited, missing } => Error::Timeout {
            waiting: call(rank, stamp),
            seconds: waited.as_secs_f64(),
            missing: missing.into_iter().map(|rank| status(segment, rank)).collect(),
        },
    })
}
