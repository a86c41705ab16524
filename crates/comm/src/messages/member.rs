//! This process as a rank, and the groups that it is in.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::ahead::Ahead;
use super::layout::Layout;
use super::notice::{LEFT, Notice};
use super::world::World;
use crate::error::{Error, Result};
use crate::held_region::HeldRegion;
use crate::patience::Patience;
use crate::region::PrivateBuffer;

/// The most channels: libraries have at least 32,767 tags, a channel has two, and notices have one.
pub(super) const CHANNELS: usize = 16_000;

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
    /// Which of them share a machine.
    pub(super) layout: Layout,
    /// The receives of the next headers.
    pub(super) ahead: Mutex<Option<Ahead>>,
}

impl Group {
    pub(super) fn new(member: Arc<Member>, channel: usize, ranks: Vec<usize>, me: usize) -> Group {
        let layout = Layout::of(&member.world.machines(&ranks), me);
        Group { member, channel, ranks, me, layout, ahead: Mutex::default() }
    }

    /// The layout by which a collective on regions works: flat where the ranks of a machine do not reach each other's memory.
    pub(super) fn layout_of(&self, regions: &[&HeldRegion]) -> Layout {
        match regions.iter().all(|region| region.buffers().count() == self.layout.row.len()) {
            true => self.layout.clone(),
            false => Layout::flat(self.ranks.len(), self.me),
        }
    }

    /// The tag of headers; tag 0 is that of notices.
    pub(super) fn header_tag(&self) -> usize {
        2 * self.channel + 1
    }

    /// The tag of data.
    pub(super) fn data_tag(&self) -> usize {
        2 * self.channel + 2
    }
}
