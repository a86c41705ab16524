//! The collectives in shared memory: barriers, and between them the work on buffers that every rank can reach.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oarlock_tensor::cpu::rank_sum::sum_range;

use super::buffer::SharedBuffer;
use super::failure::Failure;
use super::group::{Group, Member};
use super::layout::{CHANNELS, CHUNK, FINISHED, RUNNING};
use super::status::status;
use crate::blocks::Blocks;
use crate::call::Request;
use crate::collective::Collective;
use crate::error::{Error, Result};
use crate::held_region::HeldRegion;
use crate::ledger::RankStatus;
use crate::ownership::Ownership;
use crate::patience::Patience;
use crate::ready::Ready;
use crate::region::{Memory, Region, Sharing, copy};
use crate::stamp::Stamp;
use crate::transport::Transport;

/// One rank in one group.
pub(super) struct SharedMemory {
    group: Group,
}

impl SharedMemory {
    /// The whole world, seen by `member`.
    pub(super) fn world(member: Member) -> SharedMemory {
        let (ranks, me) = ((0..member.segment.world_size()).collect(), member.rank);
        SharedMemory { group: Group::new(Arc::new(member), 0, ranks, me) }
    }

    /// Gathers one number of each rank, inside a collective that has been entered.
    fn exchange_number(&self, stamp: &Stamp, number: u64) -> Result<Vec<u64>> {
        self.group.barrier(stamp, &number.to_ne_bytes(), 0)?;
        let mut bytes = Vec::with_capacity(8 * self.world_size());
        (0..self.world_size()).for_each(|i| self.group.receive(i, 0, &mut bytes));
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Reports a failure that only this rank has seen, so that the others stop waiting for it.
    fn fail_locally<T>(&self, error: Error) -> Result<T> {
        self.abort(&error.to_string());
        Err(error)
    }

    /// Runs `work` between two barriers: all sources are written before it, and none is overwritten before all have read.
    fn between_barriers(&self, request: &Request, after: Ready, work: impl FnOnce()) -> Result<Ready> {
        let stamp = self.enter(request)?;
        if let Err(error) = after.wait() {
            return self.fail_locally(error);
        }
        self.group.barrier(&stamp, &[], 0)?;
        work();
        self.group.barrier(&stamp, &[], 0)?;
        Ok(Ready::now())
    }

    fn enter(&self, request: &Request) -> Result<Stamp> {
        let stamp = Stamp::new(request);
        self.group.enter(&stamp)?;
        Ok(stamp)
    }
}

impl Transport for SharedMemory {
    fn rank(&self) -> usize {
        self.group.me
    }

    fn world_size(&self) -> usize {
        self.group.ranks.len()
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn allocate(&self, request: &Request, sharing: Sharing) -> Result<Region> {
        let stamp = self.enter(request)?;
        let (bytes, ranks) = (request.elements, self.world_size());
        let segment = self.group.segment();
        let owner = sharing == Sharing::PerRank || self.rank() == 0;
        let offset = match owner {
            true => match SharedBuffer::reserve(segment, self.group.member.rank, bytes, ranks) {
                Ok(offset) => offset,
                Err(error) => return self.fail_locally(error),
            },
            false => 0,
        };
        let offsets = self.exchange_number(&stamp, offset)?;
        let mapped = match sharing {
            Sharing::PerRank => &offsets[..],
            Sharing::Replicated => &offsets[..1],
        };
        let mut buffers: Vec<Box<dyn Memory>> = Vec::with_capacity(mapped.len());
        for &offset in mapped {
            match SharedBuffer::open(segment, offset, bytes) {
                Ok(buffer) => buffers.push(Box::new(buffer)),
                Err(error) => return self.fail_locally(error),
            }
        }
        let local = if sharing == Sharing::PerRank { self.rank() } else { 0 };
        // SAFETY: buffers of the wanted size, `local` among them, of memory that is zero; this process has mapped them for this
        // region alone, and the others touch this rank's in collectives (invariants 4 to 6).
        Ok(unsafe { Region::new(request.subject, bytes, sharing, local, buffers) })
    }

    fn barrier(&self, request: &Request) -> Result<()> {
        let stamp = self.enter(request)?;
        self.group.barrier(&stamp, &[], 0)
    }

    fn run(&self, request: &Request, collective: &Collective, after: Ready) -> Result<Ready> {
        match collective {
            Collective::AllReduce { region, range } => self.all_reduce(request, region, range, after),
            Collective::ReduceScatter { region, owners } => {
                self.reduce_scatter(request, region, owners, after)
            }
            Collective::AllGather { region, owners } => self.all_gather(request, region, owners, after),
            Collective::Broadcast { region, range, root } => {
                self.broadcast(request, region, range, *root, after)
            }
            Collective::SendReceive { region, range, from, to } => {
                let source = region.buffers().nth(*from).filter(|_| *to == self.rank());
                self.copy_between_barriers(request, region, range, source, after)
            }
            Collective::AllToAll { from, to, blocks } => self.all_to_all(request, [from, to], blocks, after),
        }
    }

    fn all_gather_bytes(&self, request: &Request, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let stamp = self.enter(request)?;
        self.group.barrier(&stamp, bytes, 0)?;
        let lengths: Vec<usize> = (0..self.world_size()).map(|i| self.group.length(i)).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut all: Vec<Vec<u8>> = lengths.into_iter().map(Vec::with_capacity).collect();
        let mut at = 0;
        loop {
            all.iter_mut().enumerate().for_each(|(i, out)| self.group.receive(i, at, out));
            at += CHUNK;
            if at >= longest {
                return Ok(all);
            }
            self.group.barrier(&stamp, bytes, at)?;
        }
    }

    fn split(&self, request: &Request, group: &[usize]) -> Result<Arc<dyn Transport>> {
        let stamp = self.enter(request)?;
        let next = &self.group.member.next_channel;
        // A channel that no rank has used: two groups with a common rank never share one (invariant 10).
        let offers = self.exchange_number(&stamp, next.load(Ordering::Relaxed) as u64)?;
        let channel = offers.into_iter().max().unwrap_or(0) as usize;
        if channel >= CHANNELS {
            let what = format!("split the ranks more than {CHANNELS} times");
            return Err(Error::system(what, "create groups once and keep them"));
        }
        next.store(channel + 1, Ordering::Relaxed);
        let me = group.iter().position(|&r| r == self.rank());
        let me = me.ok_or_else(|| Error::Join("a rank is not in its own group".into()))?;
        let ranks = group.iter().map(|&r| self.group.ranks[r]).collect();
        Ok(Arc::new(SharedMemory { group: Group::new(self.group.member.clone(), channel, ranks, me) }))
    }

    fn patience(&self) -> &Patience {
        &self.group.member.patience
    }

    fn set_phase(&self, note: &str) {
        self.group.member.set_phase(note);
    }

    fn statuses(&self) -> Vec<RankStatus> {
        self.group.ranks.iter().map(|&rank| status(self.group.segment(), rank)).collect()
    }

    fn failure(&self) -> Option<Error> {
        self.group.failure()
    }

    fn abort(&self, cause: &str) {
        let rank = self.group.member.rank;
        self.group.member.fail(&Failure::Peer { rank, cause: cause.into() });
    }

    fn finish(&self) {
        let state = &self.group.segment().cell(self.group.member.rank).state;
        // A rank that has left stays so.
        let _ = state.compare_exchange(RUNNING, FINISHED, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// What ranks do between the barriers.
impl SharedMemory {
    fn all_reduce(
        &self,
        request: &Request,
        region: &HeldRegion,
        range: &Range<usize>,
        after: Ready,
    ) -> Result<Ready> {
        let mine = Ownership::even(range.clone(), self.world_size()).of(self.rank())[0].clone();
        let buffers: Vec<*mut u8> = region.buffers().collect();
        let dtype = request.dtype.unwrap_or(oarlock_tensor::DType::F32);
        self.between_barriers(request, after, || {
            let sources: Vec<*const u8> = buffers.iter().map(|b| b.cast_const()).collect();
            // SAFETY: the communicator checked range, dtype and that all ranks of the region are here, which hold it; between
            // the two barriers this piece of every buffer is this rank's alone (invariant 5).
            unsafe { sum_range(dtype, &sources, &buffers, mine) };
        })
    }

    fn reduce_scatter(
        &self,
        request: &Request,
        region: &HeldRegion,
        owners: &Ownership,
        after: Ready,
    ) -> Result<Ready> {
        let sources: Vec<*const u8> = region.buffers().map(|b| b.cast_const()).collect();
        let dtype = request.dtype.unwrap_or(oarlock_tensor::DType::F32);
        self.between_barriers(request, after, || {
            for range in owners.of(self.rank()) {
                // SAFETY: the communicator checked ranges, dtype and that all ranks of the region are here, which hold it;
                // between the two barriers only their owner reads these elements, in any buffer, and it writes its own buffer
                // alone (invariant 4).
                unsafe { sum_range(dtype, &sources, &[region.as_ptr()], range.clone()) };
            }
        })
    }

    fn all_gather(
        &self,
        request: &Request,
        region: &HeldRegion,
        owners: &Ownership,
        after: Ready,
    ) -> Result<Ready> {
        if region.sharing() == Sharing::Replicated {
            return self.one_barrier(request, after);
        }
        let size = request.dtype.map_or(1, |d| d.size());
        let buffers: Vec<*mut u8> = region.buffers().collect();
        self.between_barriers(request, after, || {
            for (owner, from) in buffers.iter().enumerate().filter(|&(owner, _)| owner != self.rank()) {
                for range in owners.of(owner) {
                    // SAFETY: the communicator checked the ranges and that all ranks of the region are here, which hold it;
                    // between the two barriers nobody writes an owner's ranges in its buffer, and only this rank touches the
                    // others' ranges in its own (invariant 6).
                    unsafe { copy(*from, region.as_ptr(), [range.start; 2], range.len(), size) };
                }
            }
        })
    }

    fn broadcast(
        &self,
        request: &Request,
        region: &HeldRegion,
        range: &Range<usize>,
        root: usize,
        after: Ready,
    ) -> Result<Ready> {
        if region.sharing() == Sharing::Replicated {
            return self.one_barrier(request, after);
        }
        let source = region.buffers().nth(root).filter(|_| root != self.rank());
        self.copy_between_barriers(request, region, range, source, after)
    }

    /// Copies elements of another rank's buffer, where this rank receives any.
    fn copy_between_barriers(
        &self,
        request: &Request,
        region: &HeldRegion,
        range: &Range<usize>,
        source: Option<*mut u8>,
        after: Ready,
    ) -> Result<Ready> {
        let size = request.dtype.map_or(1, |d| d.size());
        self.between_barriers(request, after, || {
            if let Some(source) = source {
                // SAFETY: as for a gather in which the rank that sends owns the range (invariant 6).
                unsafe { copy(source, region.as_ptr(), [range.start; 2], range.len(), size) };
            }
        })
    }

    fn all_to_all(
        &self,
        request: &Request,
        [from, to]: [&HeldRegion; 2],
        blocks: &Blocks,
        after: Ready,
    ) -> Result<Ready> {
        let size = request.dtype.map_or(1, |d| d.size());
        let me = self.rank();
        let sources: Vec<*mut u8> = from.buffers().collect();
        self.between_barriers(request, after, || {
            for (peer, source) in sources.iter().enumerate() {
                let (sent, received) = (blocks.sent(peer, me), blocks.received(me, peer));
                // SAFETY: the communicator checked the blocks, that the regions are two and that all their ranks are here,
                // which hold them; between the two barriers nobody writes `from`, and only this rank touches its own buffer of
                // `to` (invariant 6).
                unsafe { copy(*source, to.as_ptr(), [sent.start, received.start], sent.len(), size) };
            }
        })
    }

    /// One barrier, for a buffer that all ranks share: nothing has to move.
    fn one_barrier(&self, request: &Request, after: Ready) -> Result<Ready> {
        let stamp = self.enter(request)?;
        if let Err(error) = after.wait() {
            return self.fail_locally(error);
        }
        self.group.barrier(&stamp, &[], 0)?;
        Ok(Ready::now())
    }
}
