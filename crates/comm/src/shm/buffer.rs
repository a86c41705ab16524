//! Shared buffers: pieces of the segment that ranks map, freed with their last holder.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::FallocateFlags;

use super::segment::{PAGE, Segment, map_file};
use crate::error::{Error, Result};
use crate::region::Memory;

/// A piece of a rank's area, mapped: one page that counts its holders, then the bytes.
pub(super) struct SharedBuffer {
    segment: Arc<Segment>,
    base: NonNull<u8>,
    offset: u64,
    length: usize,
}

// SAFETY: the bytes are reached only through the pointer, whose users keep to the protocol; the count is atomic.
unsafe impl Send for SharedBuffer {}
// SAFETY: as above.
unsafe impl Sync for SharedBuffer {}

impl SharedBuffer {
    /// Reserves `bytes` bytes in a rank's own area, which `holders` ranks will open; its offset in the file.
    pub(super) fn reserve(segment: &Arc<Segment>, rank: usize, bytes: usize, holders: usize) -> Result<u64> {
        let length = mapped_bytes(bytes)? as u64;
        let (start, area) = segment.area(rank);
        let allocated = &segment.cell(rank).allocated;
        let offset = allocated.fetch_add(length, Ordering::Relaxed);
        if offset.checked_add(length).is_none_or(|end| end > area) {
            allocated.fetch_sub(length, Ordering::Relaxed);
            let left = area.saturating_sub(offset);
            return Err(Error::system(
                format!("allocate {bytes} shared bytes"),
                format!("{left} left for rank {rank}"),
            ));
        }
        let buffer = SharedBuffer::open(segment, start + offset, bytes)?;
        // This mapping counts as a holder until it is dropped here.
        buffer.holders().store(holders as u32 + 1, Ordering::Relaxed);
        Ok(start + offset)
    }

    /// Maps the buffer that lies at `offset`.
    pub(super) fn open(segment: &Arc<Segment>, offset: u64, bytes: usize) -> Result<SharedBuffer> {
        let length = mapped_bytes(bytes)?;
        let base = map_file(segment.file(), offset, length)?;
        Ok(SharedBuffer { segment: segment.clone(), base, offset, length })
    }

    fn holders(&self) -> &AtomicU32 {
        // SAFETY: the first page of the buffer holds this count only; any bytes are a valid atomic.
        unsafe { self.base.cast().as_ref() }
    }
}

// SAFETY: one page after a page-aligned address; lives until drop.
unsafe impl Memory for SharedBuffer {
    fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the mapping is a page and then the bytes of the region (`mapped_bytes`), of which there may be none: then it is the end.
        unsafe { self.base.add(PAGE) }.as_ptr()
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        if self.holders().fetch_sub(1, Ordering::AcqRel) == 1 {
            // The last holder frees the memory. If that fails, it is freed at the end of the run.
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(self.segment.file(), hole, self.offset, self.length as u64);
        }
        // SAFETY: mapped in `open` with this length, unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

fn mapped_bytes(bytes: usize) -> Result<usize> {
    let whole = bytes.checked_next_multiple_of(PAGE).and_then(|b| b.checked_add(PAGE));
    whole
        .filter(|&b| b <= isize::MAX as usize)
        .ok_or_else(|| Error::system("allocate", format!("{bytes} bytes are too many")))
}
