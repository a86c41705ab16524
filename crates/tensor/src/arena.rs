//! Pooled memory: every buffer comes from here, has a name, and returns here when dropped.
//!
//! The first touch of fresh memory costs more than the arithmetic on it, so a training step that repeats its shapes
//! must not allocate: [`Arena::n_fresh`] counts the allocations that did not come from the pool.
//!
//! In memory of the host each block is one of the system, which a free block up to an eighth larger may take the place of. In
//! memory of a GPU blocks are pieces of segments ([`segments`]).

mod block;
mod out_of_memory;
mod segments;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_kernels::{Error, Result};

use crate::cuda::Gpu;
use crate::launch::{Owner, Span};
use crate::strict::Queue;
use block::{Block, Source};
use segments::Segments;

pub use out_of_memory::{GpuOutOfMemory, is_out_of_memory};
pub use segments::MemoryStats;

/// Buffers start at multiples of this many bytes: a cache line and a 512-bit vector.
pub const ALIGN: usize = 64;
/// From this size on a block is a mapping of its own, with huge pages where the system grants them.
const MAPPED: usize = 1 << 20;
/// The same in a pool with a limit: what other blocks give back is not the system's at once.
const MAPPED_WITH_LIMIT: usize = 1 << 16;

/// A pool of memory blocks. Cloning it gives another handle to the same pool.
#[derive(Clone, Default)]
pub struct Arena(Arc<Mutex<Pool>>);

#[derive(Default)]
struct Pool {
    /// Free blocks by size, of one size in the order in which they came back; the best fit is the next larger one.
    free: BTreeMap<usize, Vec<Free>>,
    /// How many blocks came back so far.
    n_freed: u64,
    usage: BTreeMap<&'static str, Usage>,
    /// The bytes of whole blocks; those of pieces are in `segments`.
    held: MemoryStats,
    n_fresh: usize,
    /// Bytes above which a fresh block takes the place of free ones.
    limit: Option<usize>,
    source: Source,
    /// What blocks are cut out of; `None` where each is one of the system.
    segments: Option<Segments>,
}

/// A free block, and how many came back before it.
struct Free {
    block: Block,
    freed: u64,
}

impl Pool {
    fn memory_stats(&self) -> MemoryStats {
        self.segments.as_ref().map_or(self.held, Segments::memory_stats)
    }

    /// The error that there are no so many bytes.
    fn out_of_memory(&self, bytes: usize, what: &'static str) -> Error {
        match &self.source {
            Source::Cuda(gpu) => {
                let memory = gpu.memory().ok();
                Error::Gpu(Box::new(GpuOutOfMemory { bytes, what, held: self.memory_stats(), memory }))
            }
            _ => Error::OutOfMemory { bytes, what },
        }
    }

    /// Takes free blocks out until so many more bytes are within the limit: those that lay longest, because what a step
    /// uses whatever its shapes comes back in every step.
    fn evict(&mut self, bytes: usize) -> Vec<Block> {
        let mut evicted = Vec::new();
        let Some(limit) = self.limit else { return evicted };
        while self.held.reserved.saturating_add(bytes) > limit {
            let oldest =
                self.free.iter().filter_map(|(&size, blocks)| Some((blocks.first()?.freed, size))).min();
            let Some((_, size)) = oldest else { break };
            let Some(blocks) = self.free.get_mut(&size) else { break };
            evicted.push(blocks.remove(0).block);
            self.held.reserved -= size;
            if blocks.is_empty() {
                self.free.remove(&size);
            }
        }
        evicted
    }
}

/// What buffers of one name use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in use now.
    pub bytes: usize,
    /// The most bytes that were in use at one time.
    pub peak_bytes: usize,
    /// Buffers in use now.
    pub n_buffers: usize,
}

impl Arena {
    /// An empty pool.
    pub fn new() -> Arena {
        Arena::default()
    }

    /// An empty pool that only keeps accounts: its buffers take no memory and have no bytes.
    pub(crate) fn dry() -> Arena {
        Arena::of(Source::Dry)
    }

    /// An empty pool of memory that only the launches of a queue and copies can touch.
    pub(crate) fn protected(queue: &Arc<Queue>) -> Arena {
        Arena::of(Source::Protected(queue.clone()))
    }

    /// An empty pool of a GPU's memory, which is cut out of segments.
    pub(crate) fn cuda(gpu: &Arc<Gpu>) -> Arena {
        Arena::of(Source::Cuda(gpu.clone())).in_segments()
    }

    /// As [`Arena::dry`], with the accounts of a GPU's pool.
    pub(crate) fn dry_of_gpu() -> Arena {
        Arena::dry().in_segments()
    }

    /// The bytes of the segments that hold buffers of these sizes on a GPU.
    pub fn bytes_of_segments(sizes: impl IntoIterator<Item = usize>) -> usize {
        let arena = Arena::dry_of_gpu();
        // Nothing of it can fail.
        let buffers: Vec<Buffer> =
            sizes.into_iter().flat_map(|bytes| arena.allocate(bytes, "counted")).collect();
        let bytes = arena.bytes();
        drop(buffers);
        bytes
    }

    fn in_segments(self) -> Arena {
        self.pool().segments = Some(Segments::default());
        self
    }

    /// Whether blocks are cut out of segments.
    pub fn is_in_segments(&self) -> bool {
        self.pool().segments.is_some()
    }

    /// From now on each block of an unused pool is memory of its own, so that `compute-sanitizer`, or a fake library in tests,
    /// sees whatever a kernel touches beyond.
    pub fn keep_blocks_apart(&self) {
        self.pool().segments = None;
    }

    /// An empty pool of memory of the host that is pinned for copies from and to a GPU.
    pub(crate) fn pinned(gpu: &Arc<Gpu>) -> Arena {
        Arena::of(Source::Pinned(gpu.clone()))
    }

    fn of(source: Source) -> Arena {
        Arena(Arc::new(Mutex::new(Pool { source, ..Pool::default() })))
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        // A panic elsewhere cannot leave the free lists half changed: every change is one insertion or removal.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of at least `bytes` bytes; its content is arbitrary (but initialized) memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the system has none, [`Error::Gpu`] when the GPU has none ([`GpuOutOfMemory`]) or has failed;
    /// [`is_out_of_memory`] knows both.
    pub fn allocate(&self, bytes: usize, what: &'static str) -> Result<Buffer> {
        // A block up to an eighth larger will do; a tighter rule would fragment, a looser one would waste.
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        self.take(bytes, bytes + bytes / 8, what)
    }

    /// As [`Arena::allocate`], from a free block however large: for what is used between steps and given back, so that
    /// it works in the memory of tensors that are not there then.
    ///
    /// # Errors
    /// As [`Arena::allocate`].
    pub fn borrow(&self, bytes: usize, what: &'static str) -> Result<Buffer> {
        self.take(bytes.max(1).next_multiple_of(ALIGN), usize::MAX, what)
    }

    fn take(&self, bytes: usize, most: usize, what: &'static str) -> Result<Buffer> {
        let pool = self.pool();
        let (block, mut pool) = match pool.segments.is_some() {
            true => self.cut(pool, bytes, what)?,
            false => self.whole(pool, bytes, most, what)?,
        };
        let usage = pool.usage.entry(what).or_default();
        usage.bytes += block.bytes;
        usage.n_buffers += 1;
        usage.peak_bytes = usage.peak_bytes.max(usage.bytes);
        Ok(Buffer { block: Some(block), arena: self.clone(), what })
    }

    /// A block of the system, or a free one of at most `most` bytes.
    fn whole<'p>(
        &'p self,
        mut pool: MutexGuard<'p, Pool>,
        bytes: usize,
        most: usize,
        what: &'static str,
    ) -> Result<(Block, MutexGuard<'p, Pool>)> {
        let fit = pool.free.range(bytes..=most).next().map(|(&size, _)| size);
        let free = fit.and_then(|size| {
            let blocks = pool.free.get_mut(&size)?;
            let free = blocks.pop();
            if blocks.is_empty() {
                pool.free.remove(&size);
            }
            free
        });
        let block = match free {
            Some(Free { block, .. }) => block,
            None => {
                let mapped = if pool.limit.is_some() { MAPPED_WITH_LIMIT } else { MAPPED };
                let mut evicted = pool.evict(bytes);
                let mut reused = None;
                if !evicted.is_empty() {
                    // Blocks end outside of the lock: launches may still have to run on them.
                    drop(pool);
                    evicted.sort_by_key(|block| block.bytes);
                    reused = evicted.pop().and_then(|block| block.resized(bytes, mapped));
                    drop(evicted);
                    pool = self.pool();
                }
                let mut block = match reused {
                    Some(block) => Some(block),
                    None => Block::new(bytes, mapped, &pool.source)?,
                };
                if block.is_none() {
                    // Free blocks of other sizes may have what is missing.
                    drop(pool);
                    self.trim();
                    pool = self.pool();
                    block = Block::new(bytes, mapped, &pool.source)?;
                }
                let block = block.ok_or_else(|| pool.out_of_memory(bytes, what))?;
                pool.n_fresh += 1;
                pool.held.reserve(bytes);
                block
            }
        };
        pool.held.allocate(block.bytes);
        Ok((block, pool))
    }

    /// A piece of a segment, of a new one where no free piece is large enough.
    fn cut<'p>(
        &'p self,
        mut pool: MutexGuard<'p, Pool>,
        bytes: usize,
        what: &'static str,
    ) -> Result<(Block, MutexGuard<'p, Pool>)> {
        let size = Segments::segment_bytes(bytes);
        loop {
            let Pool { segments: Some(segments), source, limit, .. } = &mut *pool else {
                return Err(pool.out_of_memory(bytes, what));
            };
            if let Some(cut) = segments.take(bytes) {
                return Ok((Block::cut(bytes, cut, source), pool));
            }
            let evicted = limit.map_or(Vec::new(), |limit| segments.evict(limit.saturating_sub(size)));
            if !evicted.is_empty() {
                // Segments end outside of the lock: launches may still have to run on them.
                drop(pool);
                drop(evicted);
                pool = self.pool();
            }
            let mut memory = pool.source.segment(size)?;
            if memory.is_none() {
                // Free segments of other sizes may have what is missing.
                drop(pool);
                self.trim();
                pool = self.pool();
                memory = pool.source.segment(size)?;
            }
            let memory = memory.ok_or_else(|| pool.out_of_memory(bytes, what))?;
            pool.n_fresh += 1;
            if let Some(segments) = &mut pool.segments {
                segments.add(bytes, memory);
            }
        }
    }

    /// How many allocations went to the system so far; constant over a steady training step.
    pub fn n_fresh(&self) -> usize {
        self.pool().n_fresh
    }

    /// All bytes that the pool took from the system, in use or free.
    pub fn bytes(&self) -> usize {
        self.memory_stats().reserved
    }

    /// What the pool has taken, and what blocks have of it, now and at most.
    pub fn memory_stats(&self) -> MemoryStats {
        self.pool().memory_stats()
    }

    /// Bytes that [`Arena::trim`] would not give back: blocks in use, and the segments in which there are some.
    pub fn occupied(&self) -> usize {
        let pool = self.pool();
        pool.segments.as_ref().map_or(pool.held.allocated, Segments::occupied)
    }

    /// What is in use, by name.
    pub fn usage(&self) -> Vec<(&'static str, Usage)> {
        self.pool().usage.iter().map(|(&name, &usage)| (name, usage)).collect()
    }

    /// The sizes of the free blocks, the smallest first.
    pub fn free(&self) -> Vec<usize> {
        let pool = self.pool();
        if let Some(segments) = &pool.segments {
            return segments.free();
        }
        pool.free.iter().flat_map(|(&size, blocks)| std::iter::repeat_n(size, blocks.len())).collect()
    }

    /// From now on, where a fresh block would make the pool larger than so many bytes, free blocks go back to the system
    /// first: for steps of many shapes, whose blocks seldom fit the next. What is in use may still be more.
    pub fn set_limit(&self, bytes: usize) {
        self.pool().limit = Some(bytes);
    }

    /// Gives the free blocks back to the system.
    pub fn trim(&self) {
        // Blocks end outside of the lock: launches may still have to run on them.
        let _free = {
            let mut pool = self.pool();
            let free = std::mem::take(&mut pool.free);
            pool.held.reserved -= free.iter().map(|(size, blocks)| size * blocks.len()).sum::<usize>();
            (free, pool.segments.as_mut().map(|segments| segments.evict(0)))
        };
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} bytes)", self.bytes())
    }
}

/// A piece of an [`Arena`]; returns to it when dropped.
pub struct Buffer {
    block: Option<Block>,
    arena: Arena,
    what: &'static str,
}

impl Buffer {
    /// Its size.
    pub fn len_bytes(&self) -> usize {
        self.block.as_ref().map_or(0, |b| b.bytes)
    }

    /// Its memory, for launches and copies: aligned to [`ALIGN`], and initialized.
    pub(crate) fn span(&self) -> Span<'_> {
        let nothing = Span { ptr: None, bytes: 0, owner: Owner::Pool };
        self.block.as_ref().map_or(nothing, Block::span)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let mut pool = self.arena.pool();
            if let Some(usage) = pool.usage.get_mut(self.what) {
                usage.bytes -= block.bytes;
                usage.n_buffers -= 1;
            }
            if let (Some((place, copies)), Some(segments)) = (block.place(), &mut pool.segments) {
                return segments.give(place, copies);
            }
            pool.held.allocated -= block.bytes;
            pool.n_freed += 1;
            let freed = pool.n_freed;
            pool.free.entry(block.bytes).or_default().push(Free { block, freed });
        }
    }
}

#[cfg(test)]
mod tests;
