//! Memory that collectives work on: where each rank's copy lies, and how long it lives.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use bytemuck::Pod;
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{Backing, DType, FlatBuffer, Lease, WriteLease};

use crate::error::{Error, Result};
use crate::hold::Hold;
use crate::members::Members;
use crate::operation::Operation;

/// Whether each rank has its own buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Each rank has its own buffer, as gradients need it. Where ranks share memory the others can read it in place.
    PerRank,
    /// One buffer that all ranks of the machine see, as weights need it: an all-gather over it moves nothing. A transport
    /// without shared memory gives each rank a copy. As with a file that several processes map, no rank can keep another
    /// from writing it: between two collectives each rank writes what it owns alone, and nobody reads that.
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
///
/// Its elements are lent, by [`Region::flat`], [`Region::read`], [`Region::write`] and the collectives: to many that read, or
/// to one that writes. Who comes meanwhile gets an error, so that no two of them ever see each other's half-written elements.
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    name: String,
    bytes: usize,
    sharing: Sharing,
    /// Where its elements are in memory of the host; `None` of a region in memory of this rank's GPU.
    host: Option<Arc<HostBuffers>>,
    /// Its elements as they are lent: the only flat buffer over them.
    flat: FlatBuffer,
    /// The ranks that allocated it together.
    members: OnceLock<Arc<Members>>,
    /// The collectives that work on it.
    hold: Mutex<Option<Hold>>,
}

/// The buffer of each rank that is within reach, and which of them is this rank's.
struct HostBuffers {
    local: usize,
    buffers: Vec<Box<dyn Memory>>,
}

/// This rank's buffer, of so many bytes.
struct Own(Arc<HostBuffers>, usize);

// SAFETY: `Memory` promises alignment, lifetime and one address; the size is fixed, and memory of the system is zero. Only
// `Region::new` makes one, so that all that is lent of a region is counted in one place.
unsafe impl Backing for Own {
    fn ptr(&self) -> *mut u8 {
        self.0.buffers[self.0.local].as_ptr()
    }
    fn len_bytes(&self) -> usize {
        self.1
    }
}

impl Region {
    /// A region over `buffers` (one for each rank, or a single one), of which `local` is this rank's. For transports.
    ///
    /// # Safety
    /// Each buffer holds at least `bytes` initialized bytes, and `local` is less than their number. Nobody else in this
    /// process has this rank's buffer, other ranks touch it in collectives alone, and it is given to those of these ranks
    /// alone.
    pub unsafe fn new(
        name: &str,
        bytes: usize,
        sharing: Sharing,
        local: usize,
        buffers: Vec<Box<dyn Memory>>,
    ) -> Region {
        let host = Arc::new(HostBuffers { local, buffers });
        let flat = FlatBuffer::over(Box::new(Own(host.clone(), bytes)));
        Region::over(name, bytes, sharing, Some(host), flat)
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
        Ok(Region::over(name, bytes, sharing, None, flat))
    }

    fn over(
        name: &str,
        bytes: usize,
        sharing: Sharing,
        host: Option<Arc<HostBuffers>>,
        flat: FlatBuffer,
    ) -> Region {
        let (name, members, hold) = (name.to_owned(), OnceLock::new(), Mutex::default());
        Region(Arc::new(Inner { name, bytes, sharing, host, flat, members, hold }))
    }

    /// Its elements, as launches use them; the same buffer at each call.
    pub fn flat(&self) -> FlatBuffer {
        self.0.flat.clone()
    }

    /// The same region, allocated by these ranks.
    pub(crate) fn of(self, members: &Arc<Members>) -> Region {
        self.0.members.get_or_init(|| members.clone());
        self
    }

    /// Whether these ranks may use it: they allocated it, or a transport has made it for them.
    pub(crate) fn is_for(&self, members: &Arc<Members>) -> bool {
        self.0.members.get().is_none_or(|own| Arc::ptr_eq(own, members) || own == members)
    }

    /// What collectives hold it.
    pub(crate) fn hold(&self) -> &Mutex<Option<Hold>> {
        &self.0.hold
    }

    /// Its elements, where they are in memory of a GPU.
    pub fn gpu(&self) -> Option<&FlatBuffer> {
        self.0.host.is_none().then_some(&self.0.flat)
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
    /// Who goes through it is counted nowhere: between collectives only this rank may write its own buffer (of a replicated
    /// region: its own ranges), nothing of it may be lent meanwhile, and no rank may read what another may write.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.host.as_ref().map_or(std::ptr::null_mut(), |host| host.buffers[host.local].as_ptr())
    }

    pub(crate) fn buffers(&self) -> impl Iterator<Item = *mut u8> {
        self.0.host.iter().flat_map(|host| host.buffers.iter().map(|b| b.as_ptr()))
    }

    /// The right to read its elements, until dropped; what launches do to them is over.
    fn lent(&self, operation: &'static str) -> Result<Lease> {
        let lease = self.0.flat.read().map_err(|error| self.in_use(operation, &error))?;
        self.settled(operation).map(|()| lease)
    }

    /// The right to write its elements, until dropped; what launches do to them is over.
    fn lent_to_write(&self, operation: &'static str) -> Result<WriteLease> {
        let lease = self.0.flat.write().map_err(|error| self.in_use(operation, &error))?;
        self.settled(operation).map(|()| lease)
    }

    fn settled(&self, operation: &'static str) -> Result<()> {
        let failed = |error| Error::system(format!("{operation} the region {:?}", self.name()), error);
        self.0.flat.pending().map_or(Ok(()), |launches| launches.wait()).map_err(failed)
    }

    /// The error of an operation that finds it lent.
    pub(crate) fn in_use(&self, operation: &'static str, error: &oarlock_tensor::Error) -> Error {
        let expected = format!("the region {:?} while nobody else uses it", self.name());
        Error::Argument { operation, expected, got: error.to_string() }
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
    /// Until the borrow ends nobody writes them: not this rank elsewhere (the borrow is not a lease, so that nothing
    /// refuses it), not another rank, not a collective, not a launch.
    pub unsafe fn as_slice<T: Pod>(&self) -> &[T] {
        let (first, n) = self.host_elements::<T>();
        // SAFETY: this rank's buffer begins at a multiple of 64 bytes and holds `n` elements, of which any bits are a value
        // (`Pod`), as long as `self`; that nobody writes them meanwhile is the caller's promise. No elements need no memory.
        unsafe { std::slice::from_raw_parts(first, n) }
    }

    /// This rank's elements, as a slice to write; an empty one for a region on a GPU.
    ///
    /// # Safety
    /// Until the borrow ends nobody else reads or writes them: not this rank elsewhere (the borrow is not a lease, so
    /// that nothing refuses it), not another rank, no collective, no launch.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn as_mut_slice<T: Pod>(&self) -> &mut [T] {
        let (first, n) = self.host_elements::<T>();
        // SAFETY: as in `as_slice`; that nobody else has them meanwhile is the caller's promise.
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
    /// When they do not lie inside the region, while they are in use elsewhere, or when a GPU has failed.
    pub fn read<T: Pod>(&self, first: usize, out: &mut [T]) -> Result<()> {
        let start = self.byte_offset::<T>("read", first, out.len())?;
        if let Some(flat) = self.gpu() {
            let read =
                transfer::read_with::<T, _>(flat, first..first + out.len(), |from| out.copy_from_slice(from));
            return read.map_err(|error| Error::system("read a region on a GPU", error));
        }
        let _lease = self.lent("read")?;
        for (i, byte) in bytemuck::cast_slice_mut::<T, u8>(out).iter_mut().enumerate() {
            *byte = self.byte(start + i).load(Relaxed);
        }
        Ok(())
    }

    /// Copies elements into this rank's buffer, beginning with element `first`. Safe and slow: for small values.
    ///
    /// # Errors
    /// When they do not lie inside the region, while they are in use elsewhere, or when a GPU has failed.
    pub fn write<T: Pod>(&self, first: usize, values: &[T]) -> Result<()> {
        let start = self.byte_offset::<T>("write", first, values.len())?;
        if let Some(flat) = self.gpu() {
            let range = first..first + values.len();
            let written = transfer::write_with::<T, _>(flat, range, |to| to.copy_from_slice(values));
            return written.map_err(|error| Error::system("write a region on a GPU", error));
        }
        let _lease = self.lent_to_write("write")?;
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
        // SAFETY: `at` lies inside this rank's buffer (checked by the callers), which lives as long as `self`. The callers hold a
        // lease, so that nobody in this process has a slice of it to write, nor of what they write; what other ranks do at the
        // same time, by these methods, is atomic as well.
        unsafe { AtomicU8::from_ptr(self.as_ptr().add(at)) }
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
