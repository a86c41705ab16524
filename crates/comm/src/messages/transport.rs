//! The collectives over messages: a header exchange, then messages straight between the buffers of the ranks that own and need
//! the elements.

use std::ops::Range;
use std::sync::Arc;

use oarlock_tensor::DType;
use oarlock_tensor::cpu::rank_sum::sum_range;

use super::exchange::Exchange;
use super::headers::pieces;
use super::library::ByteSpan;
use super::member::{CHANNELS, Group};
use super::notice::{FINISHED, Notice};
use super::world::World;
use crate::call::Request;
use crate::error::{Error, Result};
use crate::ledger::RankStatus;
use crate::ownership::Ownership;
use crate::patience::Patience;
use crate::ready::Ready;
use crate::region::{PrivateBuffer, Region, Sharing, copy};
use crate::stamp::Stamp;
use crate::transport::Transport;

/// Bytes of one message of a gather.
const PIECE: usize = 4 << 20;
/// Bytes of received elements that wait to be summed, of all ranks together.
const SCRATCH: usize = 32 << 20;
/// The least and most of them in one message.
const SUM_PIECE: (usize, usize) = (64 << 10, 1 << 20);

/// One rank in one group.
pub(super) struct Messages {
    group: Group,
}

impl Messages {
    pub(super) fn new(group: Group) -> Messages {
        Messages { group }
    }

    /// The elements that a rank owns, in pieces of at most `piece` elements.
    fn parts(owners: &Ownership, rank: usize, piece: usize) -> impl Iterator<Item = Range<usize>> {
        owners.of(rank).iter().flat_map(move |range| {
            let start = range.start;
            pieces(range.len(), piece).map(move |(at, n)| start + at..start + at + n)
        })
    }

    /// Exchanges headers with the others, once this rank's data are ready.
    fn enter(&self, request: &Request, after: Ready) -> Result<Stamp> {
        after.wait().map_err(|error| self.group.member.fail_locally(error))?;
        Ok(self.group.exchange_headers(request, &[])?.0)
    }

    /// Each owner receives the others' elements piece by piece, two pieces ahead, and adds them in the tree (invariant 4).
    fn sum(&self, stamp: &Stamp, region: &Region, dtype: DType, owners: &Ownership) -> Result<()> {
        let (n, me, size) = (self.world_size(), self.rank(), dtype.size());
        let piece = (SCRATCH / 2 / n).clamp(SUM_PIECE.0, SUM_PIECE.1) / 4096 * 4096 / size;
        let mut exchange = Exchange::new(&self.group, stamp);
        exchange.keep(region);
        let scratch =
            exchange.buffer(2 * n * piece * size).map_err(|error| self.group.member.fail_locally(error))?;
        // SAFETY: one place for each of two rows and each rank, inside the buffer.
        let place = |row: usize, rank: usize| unsafe { scratch.add((row % 2 * n + rank) * piece * size) };
        for peer in exchange.peers() {
            for part in Messages::parts(owners, peer, piece) {
                // SAFETY: the communicator checked the ranges; this rank writes only its own below, which are others.
                unsafe { exchange.send(peer, span(region, &part, size)) };
            }
        }
        let rows: Vec<Range<usize>> = Messages::parts(owners, me, piece).collect();
        let receive_row = |exchange: &mut Exchange, row: usize| {
            let Some(part) = rows.get(row) else { return };
            for peer in exchange.peers() {
                // SAFETY: a place of the buffer that holds a piece; the row before last, which used it, is summed.
                unsafe {
                    exchange.receive(peer, ByteSpan { at: place(row, peer), bytes: part.len() * size })
                };
            }
        };
        (0..2).for_each(|row| receive_row(&mut exchange, row));
        for (row, part) in rows.iter().enumerate() {
            let peers: Vec<usize> = exchange.peers().collect();
            exchange.wait_until(|all| peers.iter().all(|&peer| all.receives[peer].done > row))?;
            let mine = span(region, part, size).at;
            let of = |rank: usize| if rank == me { mine } else { place(row, rank) }.cast_const();
            let sources: Vec<*const u8> = (0..n).map(of).collect();
            // SAFETY: the pieces of the row are received; this rank alone owns these elements, so no message reads them.
            // Pieces begin at multiples of an element.
            unsafe { sum_range(dtype, &sources, &[mine], 0..part.len()) };
            receive_row(&mut exchange, row + 2);
        }
        exchange.finish()
    }

    /// Sends each owner's elements to all ranks but `without`, which has them (invariant 5).
    fn send_owned(
        &self,
        stamp: &Stamp,
        region: &Region,
        size: usize,
        owners: &Ownership,
        without: Option<usize>,
    ) -> Result<()> {
        let (me, piece) = (self.rank(), PIECE / size);
        let mut exchange = Exchange::new(&self.group, stamp);
        exchange.keep(region);
        for peer in exchange.peers() {
            for part in Messages::parts(owners, me, piece).filter(|_| without != Some(peer)) {
                // SAFETY: the communicator checked the ranges; nobody writes what this rank owns.
                unsafe { exchange.send(peer, span(region, &part, size)) };
            }
            for part in Messages::parts(owners, peer, piece).filter(|_| without != Some(me)) {
                // SAFETY: as above; owners do not overlap, so no other message touches these elements.
                unsafe { exchange.receive(peer, span(region, &part, size)) };
            }
        }
        exchange.finish()
    }
}

/// The bytes of elements in this rank's buffer.
fn span(region: &Region, part: &Range<usize>, size: usize) -> ByteSpan {
    // SAFETY: the communicator checked that ranges lie inside the region.
    ByteSpan { at: unsafe { region.as_ptr().add(part.start * size) }, bytes: part.len() * size }
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
        self.group.exchange_headers(request, &[])?;
        let buffer =
            PrivateBuffer::new(request.elements).map_err(|error| self.group.member.fail_locally(error))?;
        // SAFETY: one buffer of the wanted size, which is this rank's.
        Ok(unsafe { Region::new(request.subject, request.elements, sharing, 0, vec![Box::new(buffer)]) })
    }

    fn barrier(&self, request: &Request) -> Result<()> {
        self.group.exchange_headers(request, &[]).map(drop)
    }

    fn all_reduce(
        &self,
        request: &Request,
        region: &Region,
        range: Range<usize>,
        after: Ready,
    ) -> Result<Ready> {
        let stamp = self.enter(request, after)?;
        let dtype = request.dtype.unwrap_or(DType::F32);
        let owners = Ownership::even(range, self.world_size());
        self.sum(&stamp, region, dtype, &owners)?;
        self.send_owned(&stamp, region, dtype.size(), &owners, None)?;
        Ok(Ready::now())
    }

    fn reduce_scatter(
        &self,
        request: &Request,
        region: &Region,
        owners: &Ownership,
        after: Ready,
    ) -> Result<Ready> {
        let stamp = self.enter(request, after)?;
        self.sum(&stamp, region, request.dtype.unwrap_or(DType::F32), owners)?;
        Ok(Ready::now())
    }

    fn all_gather(
        &self,
        request: &Request,
        region: &Region,
        owners: &Ownership,
        after: Ready,
    ) -> Result<Ready> {
        let stamp = self.enter(request, after)?;
        self.send_owned(&stamp, region, element(request), owners, None)?;
        Ok(Ready::now())
    }

    fn broadcast(
        &self,
        request: &Request,
        region: &Region,
        range: Range<usize>,
        root: usize,
        after: Ready,
    ) -> Result<Ready> {
        let stamp = self.enter(request, after)?;
        let (size, me) = (element(request), self.rank());
        // Each rank gets a part from the root and sends it on: no rank sends more than twice what it receives.
        let owners = Ownership::even(range, self.world_size());
        let mut exchange = Exchange::new(&self.group, &stamp);
        exchange.keep(region);
        if me == root {
            for peer in exchange.peers() {
                for part in Messages::parts(&owners, peer, PIECE / size) {
                    // SAFETY: the communicator checked the range, which nobody writes on the root.
                    unsafe { exchange.send(peer, span(region, &part, size)) };
                }
            }
        } else {
            for part in Messages::parts(&owners, me, PIECE / size) {
                // SAFETY: as above; nothing else touches it before it is received.
                unsafe { exchange.receive(root, span(region, &part, size)) };
            }
        }
        exchange.finish()?;
        drop(exchange);
        self.send_owned(&stamp, region, size, &owners, Some(root))?;
        Ok(Ready::now())
    }

    fn all_to_all(
        &self,
        request: &Request,
        from: &Region,
        to: &Region,
        range: Range<usize>,
        after: Ready,
    ) -> Result<Ready> {
        let stamp = self.enter(request, after)?;
        let (size, me) = (element(request), self.rank());
        let blocks = Ownership::blocks(range, self.world_size());
        // SAFETY: the communicator checked that both regions hold the range and are two.
        unsafe { copy(from.as_ptr(), to.as_ptr(), [blocks[me].start; 2], blocks[me].len(), size) };
        let mut exchange = Exchange::new(&self.group, &stamp);
        [from, to].into_iter().for_each(|region| exchange.keep(region));
        for peer in exchange.peers() {
            let block = &blocks[peer];
            for (at, n) in pieces(block.len(), PIECE / size) {
                let part = block.start + at..block.start + at + n;
                // SAFETY: as above; nobody writes `from`, and this block of `to` is that peer's alone.
                unsafe {
                    exchange.send(peer, span(from, &part, size));
                    exchange.receive(peer, span(to, &part, size));
                }
            }
        }
        exchange.finish()?;
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
        Ok(Arc::new(Messages { group: Group { member: self.group.member.clone(), channel, ranks, me } }))
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
