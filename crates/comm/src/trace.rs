//! Each collective with its time, while tracing is on: for timelines of a run.

use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::operation::Operation;

/// One collective on this rank.
#[derive(Clone, Debug)]
pub struct CollectiveEvent {
    /// The operation.
    pub operation: Operation,
    /// The caller's file.
    pub file: &'static str,
    /// The caller's line.
    pub line: u32,
    /// Bytes of the call: those of a whole region, not the part of a rank.
    pub bytes: u64,
    /// The ranks that take part.
    pub ranks: usize,
    /// When this rank entered.
    pub start: Instant,
    /// How long it took, including waits for other ranks.
    pub time: Duration,
}

/// The events of a rank, shared by a communicator and those split from it. Off, and free, until it is started.
#[derive(Default)]
pub(crate) struct Trace {
    on: AtomicBool,
    events: Mutex<Vec<CollectiveEvent>>,
}

impl Trace {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Starts with an empty list.
    pub(crate) fn start(&self) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.on.store(true, Relaxed);
    }

    pub(crate) fn take(&self) -> Vec<CollectiveEvent> {
        self.on.store(false, Relaxed);
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn add(
        &self,
        operation: Operation,
        site: &'static Location<'static>,
        bytes: u64,
        ranks: usize,
        start: Instant,
        time: Duration,
    ) {
        let (file, line) = (site.file(), site.line());
        let event = CollectiveEvent { operation, file, line, bytes, ranks, start, time };
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Communicator;

    #[test]
    fn collectives_are_kept_one_by_one_while_somebody_asks() {
        let comm = Communicator::solo();
        comm.barrier().unwrap();
        comm.start_trace();
        let part = comm.split(&[vec![0]]).unwrap();
        comm.barrier().unwrap();
        part.all_gather_bytes(&[1, 2]).unwrap();
        let events = comm.take_trace();
        let reported: Vec<_> = events.iter().map(|e| (e.operation, e.ranks)).collect();
        assert_eq!(
            reported,
            [(Operation::Split, 1), (Operation::Barrier, 1), (Operation::AllGatherBytes, 1)]
        );
        assert!(events.iter().all(|e| e.file.ends_with("trace.rs") && e.line > 0));
        comm.barrier().unwrap();
        assert!(comm.take_trace().is_empty(), "off again");
    }
}
