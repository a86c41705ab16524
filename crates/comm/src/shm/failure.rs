//! The first failure of a run: posted once, read by every rank and by the launcher.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::layout::MAX_RANKS;
use super::seqlock::SeqLock;
use crate::stamp::{STAMP_WORDS, Stamp};

const WORDS: usize = MAX_RANKS / 64;

/// Why a run failed; ranks are those of the world.
pub(super) enum Failure {
    Peer { rank: usize, cause: String },
    Mismatch { first: (usize, Stamp), other: (usize, Stamp) },
    Timeout { rank: usize, stamp: Stamp, waited: Duration, missing: Vec<usize> },
}

/// The first failure, as it lies in the control part.
#[repr(C)]
pub(super) struct FailureCell {
    /// 0: no failure; 1: being written; 2: written.
    state: AtomicU32,
    kind: AtomicU32,
    ranks: [AtomicU64; 2],
    stamps: [SeqLock<STAMP_WORDS>; 2],
    waited_ms: AtomicU64,
    missing: [AtomicU64; WORDS],
    cause: SeqLock<64>,
}

const PEER: u32 = 0;
const MISMATCH: u32 = 1;
const TIMEOUT: u32 = 2;

impl FailureCell {
    /// Posts a failure, unless there is one already.
    pub(super) fn post(&self, failure: &Failure) {
        if self.state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return;
        }
        let side = |i: usize, rank: usize, stamp: Option<&Stamp>| {
            self.ranks[i].store(rank as u64, Ordering::Relaxed);
            if let Some(stamp) = stamp {
                self.stamps[i].write(&stamp.words());
            }
        };
        let kind = match failure {
            Failure::Peer { rank, cause } => {
                side(0, *rank, None);
                self.cause.write_text(cause);
                PEER
            }
            Failure::Mismatch { first, other } => {
                side(0, first.0, Some(&first.1));
                side(1, other.0, Some(&other.1));
                MISMATCH
            }
            Failure::Timeout { rank, stamp, waited, missing } => {
                side(0, *rank, Some(stamp));
                self.waited_ms.store(waited.as_millis() as u64, Ordering::Relaxed);
                for &m in missing {
                    self.missing[m / 64].fetch_or(1 << (m % 64), Ordering::Relaxed);
                }
                TIMEOUT
            }
        };
        self.kind.store(kind, Ordering::Relaxed);
        self.state.store(2, Ordering::Release);
    }

    /// The failure of the run, if there is one.
    pub(super) fn read(&self) -> Option<Failure> {
        if self.state.load(Ordering::Acquire) == 0 {
            return None;
        }
        let rank = |i: usize| self.ranks[i].load(Ordering::Relaxed) as usize;
        // The rank that posts it is still writing, or was killed while it wrote.
        let deadline = Instant::now() + Duration::from_millis(200);
        while self.state.load(Ordering::Acquire) != 2 {
            if Instant::now() > deadline {
                let cause = "was killed while it reported a failure".into();
                return Some(Failure::Peer { rank: rank(0), cause });
            }
            std::thread::yield_now();
        }
        let stamp = |i: usize| Stamp::from_words(self.stamps[i].read().unwrap_or([0; STAMP_WORDS]));
        Some(match self.kind.load(Ordering::Relaxed) {
            PEER => Failure::Peer { rank: rank(0), cause: self.cause.read_text() },
            MISMATCH => Failure::Mismatch { first: (rank(0), stamp(0)), other: (rank(1), stamp(1)) },
            _ => {
                let is_missing =
                    |r: &usize| self.missing[r / 64].load(Ordering::Relaxed) >> (r % 64) & 1 == 1;
                Failure::Timeout {
                    rank: rank(0),
                    stamp: stamp(0),
                    waited: Duration::from_millis(self.waited_ms.load(Ordering::Relaxed)),
                    missing: (0..MAX_RANKS).filter(is_missing).collect(),
                }
            }
        })
    }
}
