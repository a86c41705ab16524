//! What the control part and /proc say about each rank.

use std::sync::atomic::Ordering;

use super::segment::{ABSENT, FINISHED, KEPT_CALLS, LEFT, RUNNING, Segment};
use crate::call::Stamp;
use crate::ledger::{RankState, RankStatus};

/// Where a rank stands in its life. A zombie is dead.
pub(super) fn state(segment: &Segment, rank: usize) -> RankState {
    let cell = segment.cell(rank);
    match cell.state.load(Ordering::Acquire) {
        ABSENT => RankState::Absent,
        FINISHED => RankState::Finished,
        LEFT => RankState::Left,
        RUNNING => match cell.pid.load(Ordering::Relaxed) {
            // It is joining: its process is not written down yet.
            0 => RankState::Running,
            pid if pid == std::process::id() => RankState::Running,
            pid => match process(pid) {
                Some((_, start)) if start != cell.start_time.load(Ordering::Relaxed) => RankState::Dead,
                Some(('Z' | 'X' | 'x', _)) => RankState::Dead,
                Some(('T' | 't', _)) => RankState::Stopped,
                Some(_) => RankState::Running,
                None => RankState::Dead,
            },
        },
        _ => RankState::Left,
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

/// State letter and start time of a process; `None` when there is none.
pub(super) fn process(pid: u32) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, also parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start() {
        let (state, start) = process(std::process::id()).unwrap();
        assert!(matches!(state, 'R' | 'S') && start > 0, "{state} {start}");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !matches!(process(child.id()), Some(('Z', _))) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(process(child.id()), None);
    }
}
