//! A world of one rank: the same collectives, with nothing to move.

use std::sync::{Arc, Mutex, PoisonError};

use crate::call::Request;
use crate::collective::Collective;
use crate::error::Result;
use crate::ledger::{RankState, RankStatus};
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

    fn run(&self, request: &Request, collective: &Collective, after: Ready) -> Result<Ready> {
        let Collective::AllToAll { from, to, blocks } = collective else { return Ok(after) };
        after.wait()?;
        let size = request.dtype.map_or(1, |dtype| dtype.size());
        let (sent, received) = (blocks.sent(0, 0), blocks.received(0, 0));
        // SAFETY: the communicator checked that the regions hold the blocks and are two; they are held.
        unsafe { copy(from.as_ptr(), to.as_ptr(), [sent.start, received.start], sent.len(), size) };
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
            is_elsewhere: false,
        }]
    }

    // There is no other rank to tell.
    fn abort(&self, _: &str) {}
    fn finish(&self) {}
}
