//! A block of memory, and where it comes from.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, RemapOptions};
use oarlock_cuda::driver::{DeviceMemory, Uses};
use oarlock_kernels::Result;

use super::ALIGN;
use super::segments::{Cut, Place};
use crate::cuda::{self, Gpu, PinnedBlock};
use crate::launch::{Owner, Span};
use crate::strict::{ProtectedBlock, Queue};

/// Where fresh blocks come from.
#[derive(Default)]
pub(super) enum Source {
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

impl Source {
    /// Memory for a segment, `Some(None)` where that is only counted; `None` where there is no more.
    ///
    /// # Errors
    /// What launches before have met.
    pub fn segment(&self, bytes: usize) -> Result<Option<Option<Arc<DeviceMemory>>>> {
        match self {
            Source::Cuda(gpu) => Ok(gpu.segment(bytes)?.map(Some)),
            _ => Ok(Some(None)),
        }
    }
}

/// Memory from the system: zeroed when fresh, so always initialized. That of a GPU holds whatever was there.
pub(super) struct Block {
    pub bytes: usize,
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
    /// A piece of a segment.
    Cut(Place, Option<Arc<cuda::Block>>),
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
    pub fn new(bytes: usize, mapped: usize, source: &Source) -> Result<Option<Block>> {
        let memory = match source {
            Source::System => Memory::of_system(bytes, mapped),
            Source::Dry => Some(Memory::Dry),
            Source::Protected(queue) => ProtectedBlock::new(bytes, queue).map(Memory::Protected),
            Source::Cuda(gpu) => gpu.alloc(bytes)?.map(Memory::Cuda),
            Source::Pinned(gpu) => gpu.alloc_pinned(bytes)?.map(Memory::Pinned),
        };
        Ok(memory.map(|memory| Block { bytes, memory }))
    }

    /// The first bytes of a piece of a segment.
    pub fn cut(bytes: usize, cut: Cut, source: &Source) -> Block {
        let Cut { place, memory, copies } = cut;
        let memory = match (source, memory) {
            (Source::Cuda(gpu), Some(memory)) => Some(gpu.block(memory, place.start, place.bytes, copies)),
            _ => None,
        };
        Block { bytes, memory: Memory::Cut(place, memory) }
    }

    /// Where it was cut off, with the copies that may still use it.
    pub fn place(&self) -> Option<(Place, Uses)> {
        let Memory::Cut(place, memory) = &self.memory else { return None };
        Some((*place, memory.as_ref().map_or_else(Uses::default, |block| block.copies())))
    }

    /// Its memory, for launches and copies: aligned to [`ALIGN`], and initialized.
    pub fn span(&self) -> Span<'_> {
        let (ptr, owner) = match &self.memory {
            Memory::Allocated(ptr) | Memory::Mapped(ptr, _) => (Some(*ptr), Owner::Pool),
            Memory::Protected(block) => (Some(block.ptr()), Owner::Strict(&block.guard)),
            Memory::Cuda(block) | Memory::Cut(_, Some(block)) => (block.ptr(), Owner::Cuda(block)),
            Memory::Pinned(block) => (Some(block.ptr()), Owner::Pinned(block)),
            Memory::Cut(_, None) | Memory::Dry => (None, Owner::Pool),
        };
        Span { ptr, bytes: self.bytes, owner }
    }

    /// A mapping with another size: its pages stay, so that only what it grows by has to be touched for the first time.
    /// `None` where either size is not that of a mapping, or the system has no room.
    pub fn resized(mut self, bytes: usize, mapped: usize) -> Option<Block> {
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
