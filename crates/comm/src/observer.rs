//! What is observed of the collectives of a rank, by a communicator and those split from it: times by operation, a trace,
//! and how much of the time was spent behind computation.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use oarlock_tensor::DType;

use crate::call::Request;
use crate::stats::Recorder;
use crate::trace::Trace;

/// The time that a rank's collectives took, and how much of it the rank waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommunicationTime {
    /// All collectives together, each from its begin to its end.
    pub total: Duration,
    /// What callers waited: in collectives that block, and for those that ran beside them.
    pub exposed: Duration,
    /// Collectives that ran beside the caller.
    pub in_background: u64,
    /// Of these, how many were not over when they were waited for.
    pub waited_for: u64,
}

impl CommunicationTime {
    /// What was hidden behind computation.
    pub fn hidden(&self) -> Duration {
        self.total.saturating_sub(self.exposed)
    }

    /// The share that was hidden, from 0 to 1; 0 where nothing was sent.
    pub fn hidden_share(&self) -> f64 {
        match self.total.is_zero() {
            true => 0.0,
            false => self.hidden().as_secs_f64() / self.total.as_secs_f64(),
        }
    }

    /// What came after `earlier`.
    pub fn since(&self, earlier: &CommunicationTime) -> CommunicationTime {
        CommunicationTime {
            total: self.total.saturating_sub(earlier.total),
            exposed: self.exposed.saturating_sub(earlier.exposed),
            in_background: self.in_background - earlier.in_background,
            waited_for: self.waited_for - earlier.waited_for,
        }
    }
}

/// The record of a rank.
#[derive(Default)]
pub(crate) struct Observer {
    /// Empty until times are asked for.
    pub recorder: OnceLock<Recorder>,
    pub trace: Trace,
    total_ns: AtomicU64,
    exposed_ns: AtomicU64,
    in_background: AtomicU64,
    waited_for: AtomicU64,
}

impl Observer {
    /// A collective of `ranks` ranks that began at `begin` is over now.
    pub fn ran(&self, request: &Request, ranks: usize, begin: Instant) {
        let time = begin.elapsed();
        if request.operation.sends() {
            self.total_ns.fetch_add(time.as_nanos() as u64, Relaxed);
        }
        let bytes = (request.elements * request.dtype.map_or(1, DType::size)) as u64;
        if let Some(recorder) = self.recorder.get().filter(|recorder| recorder.wants(request.operation)) {
            recorder.add(request.operation, request.site, bytes, ranks, time);
        }
        if self.trace.is_on() {
            self.trace.add(request.operation, request.site, bytes, ranks, begin, time);
        }
    }

    /// A caller has waited since `begin` for a collective.
    pub fn waited(&self, begin: Instant) {
        self.exposed_ns.fetch_add(begin.elapsed().as_nanos() as u64, Relaxed);
    }

    /// A collective that ran beside the caller was taken up; whether it had to be waited for.
    pub fn taken_up(&self, waited: bool) {
        self.in_background.fetch_add(1, Relaxed);
        self.waited_for.fetch_add(u64::from(waited), Relaxed);
    }

    pub fn time(&self) -> CommunicationTime {
        CommunicationTime {
            total: Duration::from_nanos(self.total_ns.load(Relaxed)),
            exposed: Duration::from_nanos(self.exposed_ns.load(Relaxed)),
            in_background: self.in_background.load(Relaxed),
            waited_for: self.waited_for.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_time_that_nobody_waited_for() {
        let ms = Duration::from_millis;
        let time = CommunicationTime { total: ms(80), exposed: ms(20), ..CommunicationTime::default() };
        assert_eq!((time.hidden(), time.hidden_share()), (ms(60), 0.75));
        assert_eq!(CommunicationTime::default().hidden_share(), 0.0);
        // Waits for one collective may be longer than it ran: those before it are in them.
        let queued = CommunicationTime { total: ms(10), exposed: ms(11), ..time };
        assert_eq!(queued.hidden_share(), 0.0);
        assert_eq!(time.since(&time), CommunicationTime::default());
    }
}
