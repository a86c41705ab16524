//! The collectives over MPI: a meeting, then messages straight between the buffers of the ranks that own and need them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use oarlock_tensor::DType;

use super::exchange::Exchange;
use super::library::Span;
use super::member::{CHANNELS, Group, pieces};
use super::notice::{FINISHED, Notice};
use super::world::World;
use crate::call::Stamp;
use crate::error::{Error, Result};
use crate::ledger::RankStatus;
use crate::ownership::Ownership;
use crate::ready::Ready;
use crate::reduce::sum_range;
use crate::region::{Private, Region, Sharing};
use crate::transport::{Request, Transport};

/// Bytes of one message of a gather.
const PIECE: usize = 4 << 20;
/// Bytes that wait to be summed, of all ranks together.
const SCRATCH: usize = 32 << 20;
/// The least and most of them in one message.
const SUMMED: (usize, usize) = (64 << 10, 1 << 20);

/// One rank in one group.
pub(super) struct Mpi {
    group: Group,
}

impl Mpi {
    pub(super) fn world(group: Group) -> Mpi {
        Mpi { group }
    }

    /// The elements that a rank owns, in pieces of at most `piece` elements.
    fn parts(owners: &Ownership, rank: usize, piece: usize) -> impl Iterator<Item = Range<usize>> {
        owners.of(rank).iter().flat_map(move |range| {
            let start = range.start;
            pieces(range.len(), piece).map(move |(at, n)| start + at..start + at + n)
        })
    }

    /// Meets the others with the same request, once this rank's data are there.
    fn enter(&self, request: &Request, after: Ready) -> Result<Stamp> {
        after.wait().map_err(|error| self.group.member.fail_alone(error))?;
        Ok(self.group.meet(request, &[])?.0)
    }

    /// Each owner receives the others' elements piece by piece, two pieces ahead, and adds them in the tree (invariant 4).
    fn sum(&self, stamp: &Stamp, region: &Region, dtype: DType, owners: &Ownership) -> Result<()> {
        let (n, me, size) = (self.world_size(), self.rank(), dtype.size());
        let piece = (SCRATCH / 2 / n).clamp(SUMMED.0, SUMMED.1) / 4096 * 4096 / size;
        let mut exchange = Exchange::new(&self.group, stamp);
        exchange.keep(region);
        let scratch =
            exchange.area(2 * n * piece * size).map_err(|error| self.group.member.fail_alone(error))?;
        // SAFETY: one place for each of two rows and each rank, inside the area.
        let place = |row: usize, rank: usize| unsafe { scratch.add((row % 2 * n + rank) * piece * size) };
        for peer in exchange.peers() {
            for part in Mpi::parts(owners, peer, piece) {
                // SAFETY: the communicator checked the ranges; this rank writes only its own below, which are others.
                unsafe { exchange.send(peer, span(region, &part, size)) };
            }
        }
        let rows: Vec<Range<usize>> = Mpi::parts(owners, me, piece).collect();
        let ask = |exchange: &mut Exchange, row: usize| {
            let Some(part) = rows.get(row) else { return };
            for peer in exchange.peers() {
                // SAFETY: a place of the area that holds a piece; the row before last, which had it, is summed.
                unsafe { exchange.receive(peer, Span { at: place(row, peer), bytes: part.len() * size }) };
            }
        };
        (0..2).for_each(|row| ask(&mut exchange, row));
        for (row, part) in rows.iter().enumerate() {
            let peers: Vec<usize> = exchange.peers().collect();
            exchange.wait_until(|all| peers.iter().all(|&peer| all.receives[peer].done > row))?;
            let mine = span(region, part, size).at;
            let of = |rank: usize| if rank == me { mine } else { place(row, rank) }.cast_const();
            let sources: Vec<*const u8> = (0..n).map(of).collect();
            // SAFETY: the pieces of the row have come; this rank alone owns these elements, so no message reads them.
            // Pieces begin at multiples of an element.
            unsafe { sum_range(dtype, &sources, &[mine], 0..part.len()) };
            ask(&mut exchange, row + 2);
        }
        exchange.finish()
    }

    /// Each owner's elements to all ranks but `without`, which has them (invariant 5).
    fn spread(
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
            for part in Mpi::parts(owners, me, piece).filter(|_| without != Some(peer)) {
                // SAFETY: the communicator checked the ranges; nobody writes what this rank owns.
                unsafe { exchange.send(peer, span(region, &part, size)) };
            }
            for part in Mpi::parts(owners, peer, piece).filter(|_| without != Some(me)) {
                // SAFETY: as above; owners do not overlap, so no other message touches these elements.
                unsafe { exchange.receive(peer, span(region, &part, size)) };
            }
        }
        exchange.finish()
    }
}

/// Where elements lie in this rank's buffer.
fn span(region: &Region, part: &Range<usize>, size: usize) -> Span {
    // SAFETY: the communicator checked that ranges lie inside the region.
    Span { at: unsafe { region.as_ptr().add(part.start * size) }, bytes: part.len() * size }
}

fn element(request: &Request) -> usize {
    request.dtype.map_or(1, DType::size)
}

impl Transport for Mpi {
    fn rank(&self) -> usize {
        self.group.me
    }

    fn world_size(&self) -> usize {
        self.group.ranks.len()
    }

    fn shares_memory(&self) -> bool {
        false
    }

    fn sharing_cores(&self) -> (usize, usize) {
        self.group.member.world.sharing_cores(&self.group.ranks)
    }

    fn machines(&self) -> Vec<usize> {
        self.group.member.world.machines(&self.group.ranks)
    }

    fn allocate(&self, request: &Request, sharing: Sharing) -> Result<Region> {
        self.group.meet(request, &[])?;
        let buffer = Private::new(request.elements).map_err(|error| self.group.member.fail_alone(error))?;
        // SAFETY: one buffer of the wanted size, which is this rank's.
        Ok(unsafe { Region::new(request.subject, request.elements, sharing, 0, vec![Box::new(buffer)]) })
    }

    fn barrier(&self, request: &Request) -> Result<()> {
        self.group.meet(request, &[]).map(drop)
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
        self.spread(&stamp, region, dtype.size(), &owners, None)?;
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
        self.spread(&stamp, region, element(request), owners, None)?;
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
        // Each rank gets a part from the root, and hands it on: no rank sends more than twice what it gets.
        let owners = Ownership::even(range, self.world_size());
        let mut exchange = Exchange::new(&self.group, &stamp);
        exchange.keep(region);
        if me == root {
            for peer in exchange.peers() {
                for part in Mpi::parts(&owners, peer, PIECE / size) {
                    // SAFETY: the communicator checked the range, which nobody writes on the root.
                    unsafe { exchange.send(peer, span(region, &part, size)) };
                }
            }
        } else {
            for part in Mpi::parts(&owners, me, PIECE / size) {
                // SAFETY: as above; nothing else touches it before it has come.
                unsafe { exchange.receive(root, span(region, &part, size)) };
            }
        }
        exchange.finish()?;
        drop(exchange);
        self.spread(&stamp, region, size, &owners, Some(root))?;
        Ok(Ready::now())
    }

    fn all_gather_bytes(&self, request: &Request, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(self.group.meet(request, bytes)?.1)
    }

    fn split(&self, request: &Request, group: &[usize]) -> Result<Arc<dyn Transport>> {
        // A channel that is new to all: two groups with a common rank never share one.
        let (_, offers) = self.group.meet(request, &World::next_channel().to_ne_bytes())?;
        let offers = offers.iter().map(|bytes| bytemuck::pod_read_unaligned::<usize>(bytes));
        let channel = offers.max().unwrap_or(1);
        if channel >= CHANNELS {
            let what = format!("divide the ranks more than {CHANNELS} times");
            return Err(Error::system(what, "make groups once and keep them"));
        }
        World::take_channel(channel);
        let me = group.iter().position(|&r| r == self.rank());
        let me = me.ok_or_else(|| Error::Join("a rank is not in its own group".into()))?;
        let ranks = group.iter().map(|&r| self.group.ranks[r]).collect();
        Ok(Arc::new(Mpi { group: Group { member: self.group.member.clone(), channel, ranks, me } }))
    }

    fn set_timeout(&self, limit: Duration) {
        self.group.member.set_timeout(limit);
    }

    fn set_phase(&self, note: &str) {
        self.group.member.world.set_phase(note);
    }

    fn statuses(&self) -> Vec<RankStatus> {
        self.group.ranks.iter().map(|&rank| self.group.member.world.status(rank)).collect()
    }

    fn abort(&self, cause: &str) {
        let world = self.group.member.world;
        // Whichever failure was first is told to all.
        let _ = world.fail(Notice::peer(world.library.rank, cause));
    }

    fn finish(&self) {
        self.group.member.world.leave(FINISHED);
    }
}
