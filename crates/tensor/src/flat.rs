//! Flat buffers: one block of memory for all parameters (or gradients, or moments) of a unit, lent out in pieces.
//!
//! A flat buffer is read by many or written by one, never both: leases are counted, and a lease that would break the
//! rule is refused. Where the memory is shared between ranks the same rule holds between them, by the collectives'
//! barriers: a rank writes what it owns only after all have finished reading.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Arc, OnceLock};

use oarlock_kernels::{Error, Result};

use crate::arena::Buffer;
use crate::cuda::Mark;
use crate::device::Device;
use crate::launch::{HostOrder, HostOwner, Owner, Span};
use crate::ops::transfer;

/// Memory that somebody else provides, such as the shared memory of a process group. The host sees it, and launches use
/// it: who touches it from the host (a collective) waits for [`FlatBuffer::pending`] first.
///
/// # Safety
/// `ptr` is aligned to [`ALIGN`](crate::arena::ALIGN) and valid for reads and writes of `len_bytes` initialized bytes
/// for as long as the value lives; neither changes. One flat buffer is made of these bytes, as leases are counted there, and
/// nobody in this process uses them without a lease.
pub unsafe trait Backing: Send + Sync {
    /// The first byte.
    fn ptr(&self) -> *mut u8;
    /// The size.
    fn len_bytes(&self) -> usize;
}

/// What is behind a flat buffer.
enum Memory {
    Pooled(Buffer),
    Backed(Box<dyn Backing>),
    /// Nothing: it has a size and no elements.
    Dry(usize),
}

impl Memory {
    fn len_bytes(&self) -> usize {
        match self {
            Memory::Pooled(buffer) => buffer.len_bytes(),
            Memory::Backed(backing) => backing.len_bytes(),
            Memory::Dry(bytes) => *bytes,
        }
    }
}

/// A block of memory that is lent out for reading or for writing. Cloning gives another handle to the same block.
#[derive(Clone)]
pub struct FlatBuffer(Arc<Inner>);

struct Inner {
    memory: Memory,
    /// Read leases, or -1 for a write lease.
    leases: AtomicIsize,
    /// What launches are still to do to memory that the device does not own, where it defers them.
    order: OnceLock<HostOrder>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(order) = self.order.get() {
            order.finish();
        }
    }
}

/// Launches that are still to use a flat buffer.
pub struct PendingLaunches(Launched);

enum Launched {
    /// On memory that the host sees as well.
    Host(HostOrder),
    /// In the stream of a GPU, on its own memory.
    Gpu(Mark),
}

impl PendingLaunches {
    /// Their place in the stream of a GPU. Later launches come behind it by themselves.
    pub(crate) fn mark(&self) -> Option<&Mark> {
        match &self.0 {
            Launched::Host(_) => None,
            Launched::Gpu(mark) => Some(mark),
        }
    }

    /// Whether later launches come behind them by themselves, so that nobody needs to wait but the host.
    pub fn are_in_order(&self) -> bool {
        self.mark().is_some()
    }

    /// Returns when they have run.
    ///
    /// # Errors
    /// What a launch met.
    pub fn wait(&self) -> Result<()> {
        match &self.0 {
            Launched::Host(order) => order.settle(),
            Launched::Gpu(mark) => mark.wait(),
        }
    }
}

impl FlatBuffer {
    /// On memory of the device's own pool, zeroed. On a dry device it is only counted.
    ///
    /// # Errors
    /// No memory.
    pub fn pooled(device: &Device, bytes: usize, what: &'static str) -> Result<FlatBuffer> {
        let mut buffer = device.arena().allocate(bytes, what)?;
        transfer::clear(device, &mut buffer)?;
        Ok(FlatBuffer::new(Memory::Pooled(buffer)))
    }

    /// On memory of the pool that tensors of the next step may want back, with arbitrary content.
    ///
    /// # Errors
    /// No memory.
    pub fn borrowed(device: &Device, bytes: usize, what: &'static str) -> Result<FlatBuffer> {
        Ok(FlatBuffer::new(Memory::Pooled(device.arena().borrow(bytes, what)?)))
    }

    /// On pinned memory of the host beside a GPU, zeroed: [`transfer::copy`] from and to there overlaps launches, and
    /// launches of [`Device::host_device`] work in it.
    ///
    /// # Errors
    /// No memory that can be pinned; another device.
    pub fn pinned(device: &Device, bytes: usize, what: &'static str) -> Result<FlatBuffer> {
        let flat = FlatBuffer::borrowed_pinned(device, bytes, what)?;
        transfer::write_with::<u8, _>(&flat, 0..flat.len_bytes(), |bytes| bytes.fill(0))?;
        Ok(flat)
    }

    /// As [`FlatBuffer::pinned`], with arbitrary content, from a pool that wants it back soon.
    ///
    /// # Errors
    /// As [`FlatBuffer::pinned`].
    pub fn borrowed_pinned(device: &Device, bytes: usize, what: &'static str) -> Result<FlatBuffer> {
        let pool =
            device.pinned().ok_or_else(|| Error::Usage("pinned memory lies beside a GPU".to_owned()))?;
        Ok(FlatBuffer::new(Memory::Pooled(pool.allocate(bytes, what)?)))
    }

    /// Whether it is on pinned memory.
    pub fn is_pinned(&self) -> bool {
        matches!(self.span().owner, Owner::Pinned(_))
    }

    /// On memory that somebody else provides.
    pub fn over(memory: Box<dyn Backing>) -> FlatBuffer {
        FlatBuffer::new(Memory::Backed(memory))
    }

    /// On no memory, for a dry device: it has a size, and its leases have no elements.
    pub fn dry(bytes: usize) -> FlatBuffer {
        FlatBuffer::new(Memory::Dry(bytes))
    }

    fn new(memory: Memory) -> FlatBuffer {
        FlatBuffer(Arc::new(Inner { memory, leases: AtomicIsize::new(0), order: OnceLock::new() }))
    }

    /// Its size.
    pub fn len_bytes(&self) -> usize {
        self.0.memory.len_bytes()
    }

    /// Whether it is the same block of memory.
    pub fn same(&self, other: &FlatBuffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn span(&self) -> Span<'_> {
        match &self.0.memory {
            Memory::Pooled(buffer) => buffer.span(),
            Memory::Backed(backing) => {
                let (ptr, bytes) = (NonNull::new(backing.ptr()), backing.len_bytes());
                let host = |first| Owner::Host(HostOwner { first, bytes, order: &self.0.order });
                Span { ptr, bytes, owner: ptr.map_or(Owner::Pool, host) }
            }
            Memory::Dry(bytes) => Span { ptr: None, bytes: *bytes, owner: Owner::Pool },
        }
    }

    /// What launches are still to do to it where the host sees it as well; `None` on a device that runs them at once.
    pub fn pending(&self) -> Option<PendingLaunches> {
        match self.span().owner {
            Owner::Strict(guard) => Some(PendingLaunches(Launched::Host(HostOrder::Strict(guard.clone())))),
            Owner::Host(host) => {
                host.order.get().cloned().map(|order| PendingLaunches(Launched::Host(order)))
            }
            // Nobody reaches it but launches and copies, which keep their order.
            Owner::Pool | Owner::Cuda(_) | Owner::Pinned(_) => None,
        }
    }

    /// The launches so far that may use it: those of [`FlatBuffer::pending`], and for memory of a GPU all that it was
    /// given, for whoever uses it beside launches.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn launched(&self) -> Result<Option<PendingLaunches>> {
        match self.span().owner {
            Owner::Cuda(block) => Ok(Some(PendingLaunches(Launched::Gpu(block.mark()?)))),
            _ => Ok(self.pending()),
        }
    }

    /// Lends the whole buffer for reading.
    ///
    /// # Errors
    /// [`Error::Usage`] while it is lent for writing.
    pub fn read(&self) -> Result<Lease> {
        let step = |n: isize| (n >= 0).then_some(n + 1);
        match self.0.leases.fetch_update(Ordering::Acquire, Ordering::Relaxed, step) {
            Ok(_) => Ok(Lease { buffer: self.clone() }),
            Err(_) => Err(Error::Usage("a flat buffer is read while it is being written".to_string())),
        }
    }

    /// Lends the whole buffer for writing.
    ///
    /// # Errors
    /// [`Error::Usage`] while it is lent at all: a weight is still held by an op or by the caller.
    pub fn write(&self) -> Result<WriteLease> {
        match self.0.leases.compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(WriteLease { buffer: self.clone() }),
            Err(n) => Err(Error::Usage(format!(
                "a flat buffer is written while {} still use it: drop tensors that hold weights before the step",
                if n < 0 { "another writer".to_string() } else { format!("{n} reader(s)") }
            ))),
        }
    }
}

impl std::fmt::Debug for FlatBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlatBuffer({} bytes)", self.len_bytes())
    }
}

/// The right to read a flat buffer until dropped.
pub struct Lease {
    buffer: FlatBuffer,
}

impl Lease {
    pub(crate) fn span(&self) -> Span<'_> {
        self.buffer.span()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.buffer.0.leases.fetch_sub(1, Ordering::Release);
    }
}

/// The right to write a flat buffer until dropped.
pub struct WriteLease {
    buffer: FlatBuffer,
}

impl WriteLease {
    pub(crate) fn span(&self) -> Span<'_> {
        self.buffer.span()
    }
}

impl Drop for WriteLease {
    fn drop(&mut self) {
        self.buffer.0.leases.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use oarlock_kernels::{Isa, Par};

    use super::*;

    #[test]
    fn many_readers_or_one_writer() {
        let device = Device::cpu(Isa::detect(), Par::solo());
        let flat = FlatBuffer::pooled(&device, 256, "test").unwrap();
        let (a, b) = (flat.read().unwrap(), flat.read().unwrap());
        assert!(flat.write().is_err());
        drop((a, b));
        let w = flat.write().unwrap();
        assert!(flat.read().is_err() && flat.write().is_err());
        drop(w);
        assert!(flat.read().is_ok());
    }
}
