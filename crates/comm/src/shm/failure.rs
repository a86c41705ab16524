//! The first failure of a run: posted once, read by every rank and by the launcher.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::posted::Posted;
use super::segment::{MAX_RANKS, Segment};
use super::statuses::status;
use crate::call::{STAMP_WORDS, Stamp};
use crate::error::Error;

const WORDS: usize = MAX_RANKS / 64;

/// What a run can fail of, with ranks of the world.
pub(super) enum Failure {
    Peer { rank: usize, cause: String },
    Mismatch { first: (usize, Stamp), other: (usize, Stamp) },
    Timeout { rank: usize, stamp: Stamp, waited: Duration, missing: Vec<usize> },
}

/// Its place in the control part.
#[repr(C)]
pub(super) struct FailureCell {
    /// 0 none, 1 being written, 2 to be read.
    state: AtomicU32,
    kind: AtomicU32,
    ranks: [AtomicU64; 2],
    stamps: [Posted<STAMP_WORDS>; 2],
    waited_ms: AtomicU64,
    missing: [AtomicU64; WORDS],
    cause: Posted<64>,
}

const PEER: u32 = 0;
const MISMATCH: u32 = 1;
const TIMEOUT: u32 = 2;

impl FailureCell {
    /// Posts a failure unless there is one.
    pub(super) fn post(&self, failure: &Failure) {
        if self.state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return;
        }
        let side = |i: usize, rank: usize, stamp: Option<&Stamp>| {
            self.ranks[i].store(rank as u64, Ordering::Relaxed);
            if let Some(stamp) = stamp {
                self.stamps[i].put(&stamp.words());
            }
        };
        let kind = match failure {
            Failure::Peer { rank, cause } => {
                side(0, *rank, None);
                self.cause.put_text(cause);
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
    pub(super) fn read(&self, segment: &Segment) -> Option<Error> {
        if self.state.load(Ordering::Acquire) == 0 {
            return None;
        }
        // Its writer is at work, or was killed at it.
        let patience = Instant::now() + Duration::from_millis(200);
        while self.state.load(Ordering::Acquire) != 2 {
            if Instant::now() > patience {
                return Some(Error::PeerFailed {
                    rank: self.ranks[0].load(Ordering::Relaxed) as usize,
                    cause: "was killed while it reported a failure".into(),
                });
            }
            std::thread::yield_now();
        }
        let rank = |i: usize| self.ranks[i].load(Ordering::Relaxed) as usize;
        let call = |i: usize| {
            let words = self.stamps[i].get().unwrap_or([0; STAMP_WORDS]);
            Box::new(Stamp::from_words(words).call(rank(i)))
        };
        Some(match self.kind.load(Ordering::Relaxed) {
            PEER => Error::PeerFailed { rank: rank(0), cause: self.cause.get_text() },
            MISMATCH => Error::Mismatch { first: call(0), other: call(1) },
            _ => {
                let absent = |r: &usize| self.missing[r / 64].load(Ordering::Relaxed) >> (r % 64) & 1 == 1;
                let missing = (0..segment.world_size()).filter(absent).map(|r| status(segment, r)).collect();
                let seconds = self.waited_ms.load(Ordering::Relaxed) as f64 / 1e3;
                Error::Timeout { waiting: call(0), seconds, missing }
            }
        })
    }
}
