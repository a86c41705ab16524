//! What the control part and /proc say about each rank.

use std::sync::atomic::Ordering;

use super::segment::{ABSENT, FINISHED, KEPT_CALLS, RUNNING, Segment};
use crate::call::Stamp;
use crate::ledger::{RankState, RankStatus};
use crate::liveness;

/// Where a rank stands in its life. A zombie is dead.
pub(super) fn state(segment: &Segment, rank: usize) -> RankState {
    match noted(segment, rank) {
        RankState::Running => {}
        noted => return noted,
    }
    match (alive(segment, rank), noted(segment, rank)) {
        (RankState::Dead, RankState::Running) => RankState::Dead,
        // It said goodbye and ended between two looks: what a dead rank has noted stands.
        (RankState::Dead, goodbye) => goodbye,
        (alive, _) => alive,
    }
}

/// What a rank has noted itself.
fn noted(segment: &Segment, rank: usize) -> RankState {
    match segment.cell(rank).state.load(Ordering::Acquire) {
        ABSENT => RankState::Absent,
        FINISHED => RankState::Finished,
        RUNNING => RankState::Running,
        _ => RankState::Left,
    }
}

/// What its process says.
fn alive(segment: &Segment, rank: usize) -> RankState {
    let cell = segment.cell(rank);
    match cell.pid.load(Ordering::Relaxed) {
        // It is joining: its process is not written down yet.
        0 => RankState::Running,
        pid => liveness::look(pid, cell.start_time.load(Ordering::Relaxed)),
    }
}

/// The whole entry of a rank.
pub(super) fn status(segment: &Segment, rank: usize) -> RankStatus {
    let cell = segment.cell(rank);
    let n = cell.n_calls.load(Ordering::Acquire) as usize;
    let kept = n.saturating_sub(KEPT_CALLS)..n;
    let calls = kept
        .filter_map(|i| cell.calls[i % KEPT_CALLS].get())
        .map(|w| Stamp::from_words(w).call(rank))
        .collect();
    let pid = Some(cell.pid.load(Ordering::Relaxed)).filter(|&pid| pid != 0);
    RankStatus { rank, state: state(segment, rank), pid, phase: cell.phase.get_text(), calls }
}
