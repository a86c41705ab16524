//! This process as a rank, and the groups that it is in.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::notice::{LEFT, Notice};
use super::world::World;
use crate::error::{Error, Result};
use crate::patience::Patience;
use crate::region::PrivateBuffer;

/// Tags are at least so many, of which notices have one.
pub(super) const CHANNELS: usize = 32_000;

/// This rank in one session; dropped with the last communicator of the rank.
pub(super) struct Member {
    pub(super) world: &'static World,
    pub(super) patience: Patience,
    /// Buffers of earlier exchanges.
    free: Mutex<Vec<PrivateBuffer>>,
}

impl Member {
    pub(super) fn new(world: &'static World, limit: Duration) -> Member {
        let patience = Patience::default();
        patience.set_limit(limit);
        Member { world, patience, free: Mutex::default() }
    }

    /// Reports a failure that only this rank has seen; returns the first failure of the run.
    pub(super) fn fail_locally(&self, error: Error) -> Error {
        match self.world.fail(Notice::peer(self.world.library.rank(), &error.to_string())) {
            Error::PeerFailed { rank, .. } if rank == self.world.library.rank() => error,
            first => first,
        }
    }

    /// Memory for messages; that of an earlier exchange where it fits.
    pub(super) fn buffer(&self, bytes: usize) -> Result<PrivateBuffer> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        match free.iter().position(|buffer| (bytes..=2 * bytes.max(4096)).contains(&buffer.bytes())) {
            Some(index) => Ok(free.swap_remove(index)),
            None => PrivateBuffer::new(bytes),
        }
    }

    /// Keeps the memory of an exchange for later ones.
    pub(super) fn recycle(&self, buffers: Vec<PrivateBuffer>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(buffers);
        // The latest few are enough, as collectives repeat.
        let old = free.len().saturating_sub(4);
        free.drain(..old);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // A rank that has finished stays so.
        self.world.leave(LEFT);
    }
}

/// The ranks that exchange messages on one channel.
pub(super) struct Group {
    pub(super) member: Arc<Member>,
    pub(super) channel: usize,
    /// Ranks of the world, in the order of the group.
    pub(super) ranks: Vec<usize>,
    /// This rank's index among them.
    pub(super) me: usize,
}

impl Group {
    /// The tag of its messages; tag 0 is that of notices.
    pub(super) fn tag(&self) -> usize {
        self.channel + 1
    }
}
