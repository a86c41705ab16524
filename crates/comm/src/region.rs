//! Memory that collectives work on: where each rank's copy lies, and how long it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use bytemuck::Pod;
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, FlatBuffer};

use crate::error::{Error, Result};
use crate::operation::Operation;

/// Whether each rank has its own buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Each rank has its own buffer, as gradients need it. Where ranks share memory the others can read it in place.
    PerRank,
    /// One buffer that all ranks of the machine see, as weights need it: an all-gather over it moves nothing. A transport
    /// without shared memory gives each rank a copy.
    Replicated,
}

/// Keeps one buffer of a region alive.
///
/// # Safety
/// The pointer is aligned to 64 bytes, does not move, and is valid for reads and writes of the region's bytes as long as
/// the value lives.
pub unsafe trait Memory: Send + Sync {
    /// The first byte.
    fn as_ptr(&self) -> *mut u8;
}

/// A named piece of memory that all ranks allocated together. Clones share it.
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    name: String,
    bytes: usize,
    sharing: Sharing,
    place: Place,
}

/// Where its elements are.
enum Place {
    /// In memory of the host: the buffer of each rank that is within reach, and which of them is this rank's.
    Host { local: usize, buffers: Vec<Box<dyn Memory>> },
    /// In memory of this rank's GPU.
    Gpu(FlatBuffer),
}

impl Region {
    /// A region over `buffers` (one for each rank, or a single one), of which `local` is this rank's. For transports.
    ///
    /// # Safety
    /// Each buffer holds at least `bytes` bytes and `local` is less than their number.
    pub unsafe fn new(
        name: &str,
        bytes: usize,
        sharing: Sharing,
        local: usize,
        buffers: Vec<Box<dyn Memory>>,
    ) -> Region {
        Region(Arc::new(Inner {
            name: name.to_owned(),
            bytes,
            sharing,
            place: Place::Host { local, buffers },
        }))
    }

    /// A region in memory of a GPU, of which each rank has its own. For transports.
    ///
    /// # Errors
    /// When there are fewer bytes.
    pub fn on_gpu(name: &str, bytes: usize, sharing: Sharing, flat: FlatBuffer) -> Result<Region> {
        if flat.len_bytes() < bytes {
            let got = format!("{}", flat.len_bytes());
            return Err(Error::Argument { operation: "allocate", expected: format!("{bytes} bytes"), got });
        }
        Ok(Region(Arc::new(Inner { name: name.to_owned(), bytes, sharing, place: Place::Gpu(flat) })))
    }

    /// Its elements, as launches use them.
    pub fn flat(&self) -> FlatBuffer {
        self.gpu().cloned().unwrap_or_else(|| FlatBuffer::over(Box::new(self.clone())))
    }

    /// Its elements, where they are in memory of a GPU.
    pub fn gpu(&self) -> Option<&FlatBuffer> {
        match &self.0.place {
            Place::Host { .. } => None,
            Place::Gpu(flat) => Some(flat),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether it is the same memory as another handle.
    pub(crate) fn is(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Its size on each rank.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Whether each rank has its own buffer.
    pub fn sharing(&self) -> Sharing {
        self.0.sharing
    }

    /// This rank's buffer; 64-byte aligned, zero when allocated. Null for a region on a GPU, where the host has no address.
    ///
    /// Between collectives only this rank may write its own buffer (of a replicated region: its own ranges), and no rank may
    /// read what another may write. The caller must keep this rule.
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.0.place {
            Place::Host { local, buffers } => buffers[*local].as_ptr(),
            Place::Gpu(_) => std::ptr::null_mut(),
        }
    }

    pub(crate) fn buffers(&self) -> impl Iterator<Item = *mut u8> {
        let buffers = match &self.0.place {
            Place::Host { buffers, .. } => &buffers[..],
            Place::Gpu(_) => &[],
        };
        buffers.iter().map(|b| b.as_ptr())
    }

    /// The elements that a slice of the host has: none of a region on a GPU.
    fn host_elements<T>(&self) -> (*mut T, usize) {
        match self.gpu() {
            None => (self.as_ptr().cast(), self.bytes() / size_of::<T>()),
            Some(_) => (std::ptr::dangling_mut(), 0),
        }
    }

    /// This rank's elements, as a slice; an empty one for a region on a GPU.
    ///
    /// # Safety
    /// Until the borrow ends nobody writes them: not this rank elsewhere, not another rank, not a collective.
    pub unsafe fn as_slice<T: Pod>(&self) -> &[T] {
        let (first, n) = self.host_elements::<T>();
        // SAFETY: the buffer is aligned and holds `bytes` bytes of any bit pattern; exclusivity is the caller's.
        unsafe { std::slice::from_raw_parts(first, n) }
    }

    /// This rank's elements, as a slice to write; an empty one for a region on a GPU.
    ///
    /// # Safety
    /// Until the borrow ends nobody else reads or writes them: not this rank elsewhere, not another rank, no collective.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn as_mut_slice<T: Pod>(&self) -> &mut [T] {
        let (first, n) = self.host_elements::<T>();
        // SAFETY: the buffer is aligned and holds `bytes` bytes of any bit pattern; exclusivity is the caller's.
        unsafe { std::slice::from_raw_parts_mut(first, n) }
    }

    /// A sum needs floats, and a buffer for each rank.
    pub(crate) fn check_summable(&self, operation: Operation, dtype: DType) -> Result<()> {
        let got = if !dtype.is_float() {
            dtype.to_string()
        } else if self.sharing() == Sharing::Replicated {
            format!("the replicated region {:?}", self.name())
        } else {
            return Ok(());
        };
        let expected = "floats in a region with a buffer for each rank".into();
        Err(Error::Argument { operation: operation.name(), expected, got })
    }

    /// Copies elements out of this rank's buffer, beginning with element `first`. Safe and slow: for small values.
    ///
    /// # Errors
    /// When they do not lie inside the region, or a GPU has failed.
    pub fn read<T: Pod>(&self, first: usize, out: &mut [T]) -> Result<()> {
        let start = self.byte_offset::<T>("read", first, out.len())?;
        if let Some(flat) = self.gpu() {
            let read =
                transfer::read_with::<T, _>(flat, first..first + out.len(), |from| out.copy_from_slice(from));
            return read.map_err(|error| Error::system("read a region on a GPU", error));
        }
        for (i, byte) in bytemuck::cast_slice_mut::<T, u8>(out).iter_mut().enumerate() {
            *byte = self.byte(start + i).load(Relaxed);
        }
        Ok(())
    }

    /// Copies elements into this rank's buffer, beginning with element `first`. Safe and slow: for small values.
    ///
    /// # Errors
    /// When they do not lie inside the region, or a GPU has failed.
    pub fn write<T: Pod>(&self, first: usize, values: &[T]) -> Result<()> {
        let start = self.byte_offset::<T>("write", first, values.len())?;
        if let Some(flat) = self.gpu() {
            let range = first..first + values.len();
            let written = transfer::write_with::<T, _>(flat, range, |to| to.copy_from_slice(values));
            return written.map_err(|error| Error::system("write a region on a GPU", error));
        }
        for (i, &byte) in bytemuck::cast_slice::<T, u8>(values).iter().enumerate() {
            self.byte(start + i).store(byte, Relaxed);
        }
        Ok(())
    }

    fn byte_offset<T>(&self, operation: &'static str, first: usize, count: usize) -> Result<usize> {
        let end = first.checked_add(count).and_then(|end| end.checked_mul(size_of::<T>()));
        match end {
            Some(end) if end <= self.bytes() => Ok(first * size_of::<T>()),
            _ => Err(Error::Argument {
                operation,
                expected: format!("elements inside the {} bytes of region {:?}", self.bytes(), self.name()),
                got: format!("{count} elements of {} bytes from {first}", size_of::<T>()),
            }),
        }
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        // SAFETY: `at` lies inside the buffer (checked by the callers), which lives as long as `self`.
        unsafe { AtomicU8::from_ptr(self.as_ptr().add(at)) }
    }
}

// SAFETY: `Memory` promises alignment and lifetime, `bytes` is fixed, and fresh shared memory is zero. That a flat buffer
// is written only between the collectives that order it is the duty of its holder (see `Region::as_ptr`).
unsafe impl oarlock_tensor::Backing for Region {
    fn ptr(&self) -> *mut u8 {
        self.as_ptr()
    }
    fn len_bytes(&self) -> usize {
        self.bytes()
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({:?}, {} bytes, {:?})", self.name(), self.bytes(), self.sharing())
    }
}

/// Copies `n` elements of `size` bytes each from a place in one buffer to a place in another.
///
/// # Safety
/// Both buffers hold the elements and do not overlap; nobody writes those of `from` nor touches those of `to`.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, first: [usize; 2], n: usize, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from.add(first[0] * size), to.add(first[1] * size), n * size) };
}

/// A private buffer, an anonymous mapping: memory is used only when touched.
pub(crate) struct PrivateBuffer {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is reached only through its pointer.
unsafe impl Send for PrivateBuffer {}
// SAFETY: as above; a shared reference gives out nothing but the address.
unsafe impl Sync for PrivateBuffer {}

impl PrivateBuffer {
    pub(crate) fn new(bytes: usize) -> Result<PrivateBuffer> {
        use rustix::mm::{MapFlags, ProtFlags};
        let bytes = bytes.max(1);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|e| Error::system(format!("map {bytes} bytes"), e))?;
        Ok(PrivateBuffer { base: base.cast(), bytes })
    }

    /// Its size.
    #[cfg(any(feature = "gloo", feature = "mpi"))]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

// SAFETY: mappings are page aligned and live until drop.
unsafe impl Memory for PrivateBuffer {
    fn as_ptr(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for PrivateBuffer {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size, unmapped once. A failure would leave the mapping, which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
    }
}
