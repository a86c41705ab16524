//! Pooled memory: every buffer comes from here, has a name, and returns here when dropped.
//!
//! The first touch of fresh memory costs more than the arithmetic on it, so a training step that repeats its shapes
//! must not allocate: [`Arena::n_fresh`] counts the allocations that did not come from the pool.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::{Advice, MmapMut, RemapOptions};
use oarlock_kernels::{Error, Result};

use crate::cuda::{self, Gpu, PinnedBlock};
use crate::launch::{Owner, Span};
use crate::strict::{ProtectedBlock, Queue};

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
    bytes: usize,
    n_fresh: usize,
    /// Bytes above which a fresh block takes the place of free ones.
    limit: Option<usize>,
    source: Source,
}

/// A free block, and how many came back before it.
struct Free {
    block: Block,
    freed: u64,
}

impl Pool {
    /// Takes free blocks out until so many more bytes are within the limit: those that lay longest, because what a step
    /// uses whatever its shapes comes back in every step.
    fn evict(&mut self, bytes: usize) -> Vec<Block> {
        let mut evicted = Vec::new();
        let Some(limit) = self.limit else { return evicted };
        while self.bytes.saturating_add(bytes) > limit {
            let oldest =
                self.free.iter().filter_map(|(&size, blocks)| Some((blocks.first()?.freed, size))).min();
            let Some((_, size)) = oldest else { break };
            let Some(blocks) = self.free.get_mut(&size) else { break };
            evicted.push(blocks.remove(0).block);
            self.bytes -= size;
            if blocks.is_empty() {
                self.free.remove(&size);
            }
        }
        evicted
    }
}

/// Where fresh blocks come from.
#[derive(Default)]
enum Source {
    #[default]
    System,
    /// Nowhere: they are only counted.
    Dry,
    /// From the system, closed to everybody but launches and copies.
    Protected(Arc<Queue>),
    Cuda(Arc<Gpu>),
    /// From the system, pinned for copies from and to a GPU.
    Pinned(Arc<Gpu>),
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

    /// An empty pool of a GPU's memory.
    pub(crate) fn cuda(gpu: &Arc<Gpu>) -> Arena {
        Arena::of(Source::Cuda(gpu.clone()))
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

    /// A buffer of at least `bytes` bytes; its content is arbitrary (but initialised) memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the system or the GPU has none, [`Error::Gpu`] when the GPU has failed.
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
        let mut pool = self.pool();
        let fit = pool.free.range(bytes..=most).next().map(|(&size, _)| size);
        let block = match fit {
            Some(size) => {
                let blocks = pool.free.get_mut(&size).ok_or(Error::OutOfMemory { bytes, what })?;
                let Free { block, .. } = blocks.pop().ok_or(Error::OutOfMemory { bytes, what })?;
                if blocks.is_empty() {
                    pool.free.remove(&size);
                }
                block
            }
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
                let block = block.ok_or(Error::OutOfMemory { bytes, what })?;
                pool.n_fresh += 1;
                pool.bytes += bytes;
                block
            }
        };
        let usage = pool.usage.entry(what).or_default();
        usage.bytes += block.bytes;
        usage.n_buffers += 1;
        usage.peak_bytes = usage.peak_bytes.max(usage.bytes);
        Ok(Buffer { block: Some(block), arena: self.clone(), what })
    }

    /// How many allocations went to the system so far; constant over a steady training step.
    pub fn n_fresh(&self) -> usize {
        self.pool().n_fresh
    }

    /// All bytes that the pool took from the system, in use or free.
    pub fn bytes(&self) -> usize {
        self.pool().bytes
    }

    /// What is in use, by name.
    pub fn usage(&self) -> Vec<(&'static str, Usage)> {
        self.pool().usage.iter().map(|(&name, &usage)| (name, usage)).collect()
    }

    /// The sizes of the free blocks, the smallest first.
    pub fn free(&self) -> Vec<usize> {
        let pool = self.pool();
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
            pool.bytes -= free.iter().map(|(size, blocks)| size * blocks.len()).sum::<usize>();
            free
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

    /// Its memory, for launches and copies: aligned to [`ALIGN`], and initialised.
    pub(crate) fn span(&self) -> Span<'_> {
        let memory = self.block.as_ref().map(|block| &block.memory);
        let (ptr, owner) = match memory {
            Some(Memory::Allocated(ptr) | Memory::Mapped(ptr, _)) => (Some(*ptr), Owner::Pool),
            Some(Memory::Protected(block)) => (Some(block.ptr()), Owner::Strict(&block.guard)),
            Some(Memory::Cuda(block)) => (block.ptr(), Owner::Cuda(block)),
            Some(Memory::Pinned(block)) => (Some(block.ptr()), Owner::Pinned(block)),
            Some(Memory::Dry) | None => (None, Owner::Pool),
        };
        Span { ptr, bytes: self.len_bytes(), owner }
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
            pool.n_freed += 1;
            let freed = pool.n_freed;
            pool.free.entry(block.bytes).or_default().push(Free { block, freed });
        }
    }
}

/// Memory from the system: zeroed when fresh, so always initialised. That of a GPU holds whatever was there.
struct Block {
    bytes: usize,
    memory: Memory,
}

enum Memory {
    Allocated(NonNull<u8>),
    /// A mapping of its own, and where it begins.
    Mapped(NonNull<u8>, MmapMut),
    /// A mapping that is closed but to launches and copies.
    Protected(ProtectedBlock),
    Cuda(Arc<cuda::Block>),
    Pinned(Arc<PinnedBlock>),
    /// None: the block is only counted.
    Dry,
}

impl Memory {
    fn of_system(bytes: usize, mapped: usize) -> Option<Memory> {
        if bytes >= mapped {
            let mut map = MmapMut::map_anon(bytes).ok()?;
            // Without huge pages the block is slower to touch, nothing else.
            let _ = map.advise(Advice::HugePage);
            return Some(Memory::Mapped(NonNull::new(map.as_mut_ptr())?, map));
        }
        let layout = Layout::from_size_align(bytes, ALIGN).ok()?;
        // SAFETY: the layout has a size of at least ALIGN bytes.
        Some(Memory::Allocated(NonNull::new(unsafe { alloc_zeroed(layout) })?))
    }
}

// SAFETY: a block is plain memory; whoever owns the block (a buffer, or the pool's free list) rules its use.
unsafe impl Send for Block {}
// SAFETY: as above; shared references give no access to the memory by themselves.
unsafe impl Sync for Block {}

impl Block {
    /// Blocks of `mapped` bytes and more are mappings of their own. `None` where there is no memory.
    fn new(bytes: usize, mapped: usize, source: &Source) -> Result<Option<Block>> {
        let memory = match source {
            Source::System => Memory::of_system(bytes, mapped),
            Source::Dry => Some(Memory::Dry),
            Source::Protected(queue) => ProtectedBlock::new(bytes, queue).map(Memory::Protected),
            Source::Cuda(gpu) => gpu.alloc(bytes)?.map(Memory::Cuda),
            Source::Pinned(gpu) => gpu.alloc_pinned(bytes)?.map(Memory::Pinned),
        };
        Ok(memory.map(|memory| Block { bytes, memory }))
    }

    /// A mapping with another size: its pages stay, so that only what it grows by has to be touched for the first time.
    /// `None` where either size is not that of a mapping, or the system has no room.
    fn resized(mut self, bytes: usize, mapped: usize) -> Option<Block> {
        if bytes < mapped {
            return None;
        }
        let Memory::Mapped(ptr, map) = &mut self.memory else { return None };
        // SAFETY: the block is free, and owned here: nothing points into it.
        unsafe { map.remap(bytes, RemapOptions::new().may_move(true)) }.ok()?;
        *ptr = NonNull::new(map.as_mut_ptr())?;
        self.bytes = bytes;
        Some(self)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Memory::Allocated(ptr) = self.memory {
            // SAFETY: allocated in `of_system` with this very layout (valid there, so valid here).
            unsafe { dealloc(ptr.as_ptr(), Layout::from_size_align_unchecked(self.bytes, ALIGN)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_serves_the_next_of_its_size() {
        let arena = Arena::new();
        for bytes in [100, 3 << 20] {
            let before = arena.n_fresh();
            let first = arena.allocate(bytes, "test").unwrap();
            let ptr = first.span().ptr.unwrap();
            assert_eq!(ptr.addr().get() % ALIGN, 0);
            drop(first);
            let second = arena.allocate(bytes, "test").unwrap();
            assert_eq!(second.span().ptr, Some(ptr));
            let third = arena.allocate(bytes, "test").unwrap();
            assert_ne!(third.span().ptr, Some(ptr));
            assert_eq!(arena.n_fresh() - before, 2);
        }
        let usage = arena.usage()[0].1;
        assert_eq!((usage.bytes, usage.n_buffers), (0, 0));
        assert!(usage.peak_bytes >= 6 << 20);
        arena.trim();
        assert_eq!(arena.bytes(), 0);
    }

    #[test]
    fn what_is_borrowed_is_the_smallest_free_block_that_is_large_enough() {
        let arena = Arena::new();
        let sizes = [64, 4096, 1 << 20];
        drop(sizes.map(|bytes| arena.allocate(bytes, "test").unwrap()));
        assert_eq!(arena.free(), sizes);
        // A tensor of this size takes none of them.
        let borrowed = [100, 100, 100].map(|bytes| arena.borrow(bytes, "test").unwrap().len_bytes());
        assert_eq!(borrowed, [4096; 3], "given back, it is there again");
        let held = [100, 100, 100].map(|bytes| arena.borrow(bytes, "test").unwrap());
        assert_eq!(held.each_ref().map(Buffer::len_bytes), [4096, 1 << 20, 128]);
        assert_eq!((arena.free(), arena.n_fresh()), (vec![64], 4));
    }

    #[test]
    fn a_dry_pool_keeps_the_same_accounts_without_memory() {
        let (dry, real) = (Arena::dry(), Arena::new());
        let accounts = [&dry, &real].map(|arena| {
            let kept = arena.allocate(5000, "kept").unwrap();
            drop(arena.allocate(3 << 20, "scratch").unwrap());
            drop(arena.allocate(3 << 20, "scratch").unwrap());
            drop(arena.allocate(2 << 20, "scratch").unwrap());
            let accounts = (arena.usage(), arena.bytes(), arena.n_fresh(), kept.len_bytes());
            drop(kept);
            arena.trim();
            (accounts, arena.bytes())
        });
        assert_eq!(accounts[0], accounts[1]);
        let huge = dry.allocate(1 << 50, "more than there is").unwrap();
        assert!(huge.span().ptr.is_none() && huge.len_bytes() == 1 << 50);
    }

    #[test]
    fn above_its_limit_a_pool_gives_free_blocks_back_for_fresh_ones() {
        let arena = Arena::new();
        arena.set_limit(10_000);
        let sizes = [1024, 2048, 4096];
        drop(sizes.map(|bytes| arena.allocate(bytes, "test").unwrap()));
        let held = arena.allocate(2816, "test").unwrap();
        assert_eq!((arena.bytes(), arena.free()), (1024 + 2048 + 4096 + 2816, sizes.to_vec()));
        let more = arena.allocate(1536, "test").unwrap();
        assert_eq!((arena.bytes(), arena.free()), (4096 + 2816 + 1536, vec![4096]), "the oldest went");
        // What is in use stays.
        let much = arena.allocate(9984, "test").unwrap();
        assert_eq!((arena.bytes(), arena.free()), (2816 + 1536 + 9984, vec![]));
        drop((held, more, much));
        assert_eq!(arena.free(), [1536, 2816, 9984]);
    }

    #[test]
    fn above_its_limit_a_pool_resizes_the_mapping_of_a_free_block() {
        let arena = Arena::new();
        arena.set_limit(5 << 20);
        let fill = |buffer: &Buffer, value: u8| {
            // SAFETY: the span is the buffer's memory, and nothing else uses it.
            unsafe { buffer.span().ptr.unwrap().write_bytes(value, buffer.len_bytes()) }
        };
        let first_byte = |buffer: &Buffer| {
            // SAFETY: as above; the memory is initialised.
            unsafe { buffer.span().ptr.unwrap().read() }
        };
        for (value, sizes) in [(1, [3 << 20, 4 << 20]), (2, [4 << 20, 2 << 20])] {
            let before = arena.allocate(sizes[0], "test").unwrap();
            fill(&before, value);
            drop(before);
            let after = arena.allocate(sizes[1], "test").unwrap();
            assert_eq!(first_byte(&after), value, "the pages stayed");
            assert_eq!((arena.bytes(), arena.free()), (sizes[1], vec![]));
            // All of it is there.
            fill(&after, 3);
        }
        assert_eq!(arena.usage()[0].1.bytes, 0);
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(matches!(Arena::new().allocate(1 << 60, "test"), Err(Error::OutOfMemory { .. })));
    }
}
