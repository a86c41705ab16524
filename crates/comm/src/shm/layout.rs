//! What lies in the control part of a segment: the cells and slots of ranks, and the limits that they imply.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::seqlock::SeqLock;
use crate::stamp::STAMP_WORDS;

/// Groups that one world can make.
pub(super) const CHANNELS: usize = 64;
/// Ranks of one machine.
pub(super) const MAX_RANKS: usize = 512;
/// Bytes that a rank can hand over at one barrier.
pub(super) const CHUNK: usize = 16 << 10;
/// Collectives of each rank that the ledger keeps.
pub(super) const KEPT_CALLS: usize = 16;

/// What a rank publishes about itself.
#[repr(C, align(128))]
pub(super) struct RankCell {
    /// One of the constants below.
    pub(super) state: AtomicU32,
    pub(super) pid: AtomicU32,
    /// Of the process, in clock ticks since boot: a pid alone can be used again.
    pub(super) start_time: AtomicU64,
    /// Bytes of its area that are given out.
    pub(super) allocated: AtomicU64,
    pub(super) phase: SeqLock<16>,
    pub(super) n_calls: AtomicU64,
    pub(super) calls: [SeqLock<STAMP_WORDS>; KEPT_CALLS],
}

/// States of a [`RankCell`].
pub(super) const ABSENT: u32 = 0;
pub(super) const RUNNING: u32 = 1;
pub(super) const FINISHED: u32 = 2;
pub(super) const LEFT: u32 = 3;

/// A rank's slot in a channel. Entries of consecutive rounds are kept apart by their parity (invariant 3).
#[repr(C, align(128))]
pub(super) struct Slot {
    /// Counts completed barriers; the ranks sleep on it. Used in the slot of the group's first rank.
    pub(super) generation: AtomicU32,
    /// The ranks that have entered this barrier. Used in the slot of the group's first rank.
    pub(super) entered: AtomicU32,
    pub(super) sleepers: AtomicU32,
    /// When a rank last looked at the processes of all, in milliseconds of the clock that all ranks read. Used in the slot of the
    /// group's first rank.
    looked: AtomicU32,
    pub(super) entries: [BarrierEntry; 2],
}

impl Slot {
    /// Whether this rank is to look at the processes of the group: nobody has for `after`.
    pub(super) fn takes_the_look(&self, after: Duration) -> bool {
        let clock = clock_gettime(ClockId::Monotonic);
        let now = (clock.tv_sec as u32).wrapping_mul(1000).wrapping_add((clock.tv_nsec / 1_000_000) as u32);
        let last = self.looked.load(Ordering::Relaxed);
        u128::from(now.wrapping_sub(last)) >= after.as_millis()
            && self.looked.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// What a rank brings to a barrier.
#[repr(C, align(64))]
pub(super) struct BarrierEntry {
    /// The number of the barrier; written last.
    pub(super) round: AtomicU64,
    /// Everything that must agree, as one number.
    pub(super) key: AtomicU64,
    /// The whole length of the bytes, of which one chunk lies in the payload.
    pub(super) length: AtomicU64,
    pub(super) stamp: SeqLock<STAMP_WORDS>,
}

#[cfg(test)]
mod tests {
    use super::super::segment::Segment;
    use super::*;

    #[test]
    fn one_of_the_ranks_that_wait_looks_at_the_processes_of_all() {
        let (segment, _) = Segment::create(2).unwrap();
        let slot = segment.slot(0, 0);
        let long = Duration::from_secs(60);
        assert!(slot.takes_the_look(Duration::ZERO));
        assert_eq!((0..200).filter(|_| slot.takes_the_look(long)).count(), 0);
        // If that one is gone, another finds the look due.
        std::thread::sleep(Duration::from_millis(3));
        assert!(slot.takes_the_look(Duration::from_millis(2)));
    }
}
