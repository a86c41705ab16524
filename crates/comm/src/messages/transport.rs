//! The collectives over messages: a header exchange, then messages straight between the buffers of the ranks that own and need
//! the elements.

use std::ops::Range;
use std::sync::Arc;

use oarlock_tensor::DType;
use oarlock_tensor::cpu::rank_sum::sum_range;

use super::exchange::Exchange;
use super::headers::INLINE;
use super::member::{CHANNELS, Group};
use super::notice::{FINISHED, Notice};
use super::pieces::{PIECE, parts, pieces_of, span};
use super::shared_buffer::{Offer, SharedBuffer};
use super::world::World;
use crate::blocks::Blocks;
use crate::call::Request;
use crate::collective::Collective;
use crate::error::{Error, Result};
use crate::held_region::HeldRegion;
use crate::ledger::RankStatus;
use crate::ownership::Ownership;
use crate::patience::Patience;
use crate::ready::Ready;
use crate::region::{Memory, PrivateBuffer, Region, Sharing, copy};
use crate::stamp::Stamp;
use crate::transport::Transport;

/// An all-reduce of at most so many bytes, of all ranks together, is done by headers alone.
const FEW: usize = 64 << 10;

/// One rank in one group.
pub(super) struct Messages {
    group: Group,
}

impl Messages {
    pub(super) fn new(group: Group) -> Messages {
        Messages { group }
    }

    /// Exchanges headers with the others, once this rank's data are ready.
    fn enter(&self, request: &Request, after: Ready) -> Result<Stamp> {
        after.wait().map_err(|error| self.group.member.fail_locally(error))?;
        Ok(self.group.exchange_headers(request, &[])?.0)
    }

    /// Buffers of the ranks of this machine that all of them reach, or `None` on every rank of the group if one rank fails to.
    fn share(&self, request: &Request, bytes: usize) -> Result<Option<Vec<Box<dyn Memory>>>> {
        if self.group.layout.is_flat() {
            return self.group.exchange_headers(request, &[]).map(|_| None);
        }
        let (mut own, file, offer) = match SharedBuffer::create(bytes) {
            Ok((own, file, offer)) => (Some(own), Some(file), offer),
            Err(_) => (None, None, Offer::none()),
        };
        let (_, offers) = self.group.exchange_headers(request, bytemuck::bytes_of(&offer))?;
        let open = |&rank: &usize| -> Option<Box<dyn Memory>> {
            if rank == self.rank() {
                return Some(Box::new(own.take()?));
            }
            let offer: Offer = bytemuck::try_pod_read_unaligned(&offers[rank]).ok()?;
            Some(Box::new(SharedBuffer::open(&offer, bytes).ok()?))
        };
        let buffers: Option<Vec<_>> = self.group.layout.row.iter().map(open).collect();
        // The file stays open until all have opened it.
        let (_, all) = self.group.exchange_headers(request, &[u8::from(buffers.is_some())])?;
        drop(file);
        Ok(buffers.filter(|_| all.iter().all(|said| said == &[1])))
    }

    /// The sums of few bytes, which headers bring: one message of each rank to each other.
    fn sum_inline(
        &self,
        request: &Request,
        region: &HeldRegion,
        range: &Range<usize>,
        dtype: DType,
    ) -> Result<()> {
        let mine = span(region, range, dtype.size());
        // SAFETY: the communicator checked the range; the region is held, so that nobody else touches it now.
        let bytes = unsafe { std::slice::from_raw_parts(mine.at.cast_const(), mine.bytes) };
        let (_, all) = self.group.exchange_headers(request, bytes)?;
        if all.iter().any(|bytes| bytes.len() != mine.bytes) {
            let what = "a rank sent another number of elements than it said";
            return Err(self.group.member.fail_locally(Error::Join(what.into())));
        }
        // Aligned for every element.
        let copies: Vec<Vec<u64>> = all.iter().map(|bytes| bytemuck::pod_collect_to_vec(bytes)).collect();
        let sources: Vec<*const u8> = copies.iter().map(|words| words.as_ptr().cast()).collect();
        // SAFETY: each rank has sent as many bytes (checked); the region is as above, and `bytes` is not used any more.
        unsafe { sum_range(dtype, &sources, &[mine.at], 0..range.len()) };
        Ok(())
    }
}

fn element(request: &Request) -> usize {
    request.dtype.map_or(1, DType::size)
}

impl Transport for Messages {
    fn rank(&self) -> usize {
        self.group.me
    }

    fn world_size(&self) -> usize {
        self.group.ranks.len()
    }

    fn shares_memory(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        self.group.member.world.library.name().to_string()
    }

    fn sharing_cores(&self) -> (usize, usize) {
        self.group.member.world.sharing_cores(&self.group.ranks)
    }

    fn machines(&self) -> Vec<usize> {
        self.group.member.world.machines(&self.group.ranks)
    }

    fn allocate(&self, request: &Request, sharing: Sharing) -> Result<Region> {
        let (name, bytes) = (request.subject, request.elements);
        if let Some(buffers) = self.share(request, bytes)? {
            // SAFETY: buffers of the wanted size, one for each rank of this machine.
            return Ok(unsafe { Region::new(name, bytes, sharing, self.group.layout.place, buffers) });
        }
        let buffer = PrivateBuffer::new(bytes).map_err(|error| self.group.member.fail_locally(error))?;
        // SAFETY: one buffer of the wanted size, which is this rank's.
        Ok(unsafe { Region::new(name, bytes, sharing, 0, vec![Box::new(buffer)]) })
    }

    fn barrier(&self, request: &Request) -> Result<()> {
        self.group.exchange_headers(request, &[]).map(drop)
    }

    fn run(&self, request: &Request, collective: &Collective, after: Ready) -> Result<Ready> {
        match collective {
            Collective::AllReduce { region, range } => self.all_reduce(request, region, range, after),
            Collective::ReduceScatter { region, owners } => {
                let stamp = self.enter(request, after)?;
                self.group.sum(&stamp, region, request.dtype.unwrap_or(DType::F32), owners, false)
            }
            Collective::AllGather { region, owners } => {
                let stamp = self.enter(request, after)?;
                self.group.gather(&stamp, region, element(request), owners, None)
            }
            Collective::Broadcast { region, range, root } => {
                self.broadcast(request, region, range, *root, after)
            }
            Collective::SendReceive { region, range, from, to } => {
                self.send_receive(request, region, range, [*from, *to], after)
            }
            Collective::AllToAll { from, to, blocks } => self.all_to_all(request, [from, to], blocks, after),
        }?;
        Ok(Ready::now())
    }

    fn all_gather_bytes(&self, request: &Request, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(self.group.exchange_headers(request, bytes)?.1)
    }

    fn split(&self, request: &Request, group: &[usize]) -> Result<Arc<dyn Transport>> {
        // A channel that no rank has used: two groups with a common rank never share one (invariant 3).
        let (_, offers) = self.group.exchange_headers(request, &World::next_channel().to_ne_bytes())?;
        let offers = offers.iter().map(|bytes| bytemuck::pod_read_unaligned::<usize>(bytes));
        let channel = offers.max().unwrap_or(1);
        if channel >= CHANNELS {
            let what = format!("split the ranks more than {CHANNELS} times");
            return Err(Error::system(what, "create groups once and keep them"));
        }
        World::take_channel(channel);
        let me = group.iter().position(|&r| r == self.rank());
        let me = me.ok_or_else(|| Error::Join("a rank is not in its own group".into()))?;
        let ranks = group.iter().map(|&r| self.group.ranks[r]).collect();
        Ok(Arc::new(Messages::new(Group::new(self.group.member.clone(), channel, ranks, me))))
    }

    fn patience(&self) -> &Patience {
        &self.group.member.patience
    }

    fn set_phase(&self, note: &str) {
        self.group.member.world.set_phase(note);
    }

    fn statuses(&self) -> Vec<RankStatus> {
        self.group.ranks.iter().map(|&rank| self.group.member.world.status(rank)).collect()
    }

    fn failure(&self) -> Option<Error> {
        self.group.member.world.check().err()
    }

    fn abort(&self, cause: &str) {
        let world = self.group.member.world;
        // All ranks get the first failure, whichever it was.
        let _ = world.fail(Notice::peer(world.library.rank(), cause));
    }

    fn finish(&self) {
        self.group.member.world.leave(FINISHED);
    }
}

impl Messages {
    fn all_reduce(
        &self,
        request: &Request,
        region: &HeldRegion,
        range: &Range<usize>,
        after: Ready,
    ) -> Result<()> {
        let dtype = request.dtype.unwrap_or(DType::F32);
        let bytes = range.len() * dtype.size();
        if bytes <= INLINE && bytes * self.world_size() <= FEW {
            after.wait().map_err(|error| self.group.member.fail_locally(error))?;
            return self.sum_inline(request, region, range, dtype);
        }
        let stamp = self.enter(request, after)?;
        let owners = Ownership::even(range.clone(), self.world_size());
        self.group.sum(&stamp, region, dtype, &owners, true)
    }

    fn broadcast(
        &self,
        request: &Request,
        region: &HeldRegion,
        range: &Range<usize>,
        root: usize,
        after: Ready,
    ) -> Result<()> {
        let stamp = self.enter(request, after)?;
        let (size, me) = (element(request), self.rank());
        // Each rank gets a part from the root and sends it on: no rank sends more than twice what it receives.
        let owners = Ownership::even(range.clone(), self.world_size());
        let mut exchange = Exchange::new(&self.group, &stamp);
        exchange.keep(region);
        if me == root {
            for peer in exchange.peers() {
                for part in parts(&owners, peer, PIECE / size) {
                    // SAFETY: the communicator checked the range, which nobody writes on the root.
                    unsafe { exchange.send(peer, span(region, &part, size)) };
                }
            }
        } else {
            for part in parts(&owners, me, PIECE / size) {
                // SAFETY: as above; nothing else touches it before it is received.
                unsafe { exchange.receive(root, span(region, &part, size)) };
            }
        }
        exchange.finish()?;
        drop(exchange);
        self.group.gather(&stamp, region, size, &owners, Some(root))
    }

    fn send_receive(
        &self,
        request: &Request,
        region: &HeldRegion,
        range: &Range<usize>,
        [from, to]: [usize; 2],
        after: Ready,
    ) -> Result<()> {
        let stamp = self.enter(request, after)?;
        let (size, me) = (element(request), self.rank());
        let mut exchange = Exchange::new(&self.group, &stamp);
        exchange.keep(region);
        for part in pieces_of(range.clone(), PIECE / size) {
            // SAFETY: the communicator checked the range; the region is held, and the others do not touch this rank's buffer.
            unsafe {
                if me == from {
                    exchange.send(to, span(region, &part, size));
                } else if me == to {
                    exchange.receive(from, span(region, &part, size));
                }
            }
        }
        exchange.finish()
    }

    fn all_to_all(
        &self,
        request: &Request,
        [from, to]: [&HeldRegion; 2],
        blocks: &Blocks,
        after: Ready,
    ) -> Result<()> {
        let stamp = self.enter(request, after)?;
        let (size, me) = (element(request), self.rank());
        let (own, place_of_own) = (blocks.sent(me, me), blocks.received(me, me).start);
        // SAFETY: the communicator checked that the regions hold the blocks and are two; they are held.
        unsafe { copy(from.as_ptr(), to.as_ptr(), [own.start, place_of_own], own.len(), size) };
        let mut exchange = Exchange::new(&self.group, &stamp);
        [from, to].into_iter().for_each(|region| exchange.keep(region));
        let layout = self.group.layout_of(&[from, to]);
        let place =
            |rank: &usize| layout.row.iter().position(|row| row == rank).filter(|_| !layout.is_flat());
        for peer in exchange.peers().filter(|peer| place(peer).is_none()) {
            // SAFETY: as above; nobody writes `from`, and this block of `to` is that peer's alone.
            unsafe {
                for part in pieces_of(blocks.sent(me, peer), PIECE / size) {
                    exchange.send(peer, span(from, &part, size));
                }
                for part in pieces_of(blocks.received(me, peer), PIECE / size) {
                    exchange.receive(peer, span(to, &part, size));
                }
            }
        }
        if !layout.is_flat() {
            for (buffer, &peer) in from.buffers().zip(&layout.row).filter(|(_, peer)| **peer != me) {
                let (sent, received) = (blocks.sent(peer, me), blocks.received(me, peer));
                // SAFETY: as above: that rank has entered, and writes nothing before its row has settled.
                unsafe { copy(buffer, to.as_ptr(), [sent.start, received.start], sent.len(), size) };
                // Messages move meanwhile.
                exchange.wait_until(|_| true)?;
            }
        }
        exchange.finish()?;
        exchange.settle(&layout)
    }
}
