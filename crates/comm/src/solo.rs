//! A world of one rank: the same collectives, with nothing to move.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::call::Request;
use crate::error::Result;
use crate::held::Held;
use crate::ledger::{RankState, RankStatus};
use crate::ownership::Ownership;
use crate::patience::Patience;
use crate::ready::Ready;
use crate::region::{PrivateBuffer, Region, Sharing, copy};
use crate::transport::Transport;

/// The transport of a single rank: sums are the values themselves, and gathers and broadcasts find everything in place.
pub(crate) struct Solo {
    phase: Mutex<String>,
    /// Never needed.
    patience: Patience,
}

impl Solo {
    pub(crate) fn new() -> Solo {
        Solo { phase: Mutex::default(), patience: Patience::default() }
    }
}

impl Transport for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn allocate(&self, request: &Request, sharing: Sharing) -> Result<Region> {
        let buffer = PrivateBuffer::new(request.elements)?;
        // SAFETY: one buffer of the wanted size, which is this rank's.
        Ok(unsafe { Region::new(request.subject, request.elements, sharing, 0, vec![Box::new(buffer)]) })
    }

    fn barrier(&self, _: &Request) -> Result<()> {
        Ok(())
    }

    fn all_reduce(&self, _: &Request, _: &Held, _: Range<usize>, after: Ready) -> Result<Ready> {
        Ok(after)
    }

    fn reduce_scatter(&self, _: &Request, _: &Held, _: &Ownership, after: Ready) -> Result<Ready> {
        Ok(after)
    }

    fn all_gather(&self, _: &Request, _: &Held, _: &Ownership, after: Ready) -> Result<Ready> {
        Ok(after)
    }

    fn broadcast(&self, _: &Request, _: &Held, _: Range<usize>, _: usize, after: Ready) -> Result<Ready> {
        Ok(after)
    }

    fn all_to_all(
        &self,
        request: &Request,
        from: &Held,
        to: &Held,
        range: Range<usize>,
        after: Ready,
    ) -> Result<Ready> {
        after.wait()?;
        let size = request.dtype.map_or(1, |dtype| dtype.size());
        // SAFETY: the communicator checked that both regions hold the range and are two; they are held.
        unsafe { copy(from.as_ptr(), to.as_ptr(), [range.start, range.start], range.len(), size) };
        Ok(Ready::now())
    }

    fn all_gather_bytes(&self, _: &Request, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![bytes.to_vec()])
    }

    fn split(&self, _: &Request, _: &[usize]) -> Result<Arc<dyn Transport>> {
        Ok(Arc::new(Solo::new()))
    }

    fn patience(&self) -> &Patience {
        &self.patience
    }

    fn set_phase(&self, note: &str) {
        note.clone_into(&mut self.phase.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn statuses(&self) -> Vec<RankStatus> {
        let phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone();
        vec![RankStatus {
            rank: 0,
            state: RankState::Running,
            pid: Some(std::process::id()),
            phase,
            calls: Vec::new(),
        }]
    }

    // There is no other rank to tell.
    fn abort(&self, _: &str) {}
    fn finish(&self) {}
}
