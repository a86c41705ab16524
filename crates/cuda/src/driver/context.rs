//! The primary context of a GPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::api::{Api, Handle, call};
use super::device::Device;
use super::limits::DeviceLimits;
use super::memory::DeviceMemory;
use super::module::Module;
use super::pinned::Pinned;
use super::stream::{Event, Stream};
use crate::error::{Error, Result};

/// A context. Cloning gives another handle to the same one, and what is made in it keeps it alive.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    device: Device,
    handle: Handle,
    limits: DeviceLimits,
    counters: Counters,
}

/// What a context and everything in it have asked of the driver so far. Differences of two of these tell what some work
/// costs the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernels and products.
    pub launches: u64,
    /// How often the host waited for the GPU: for a stream, an event, the context, or a copy.
    pub waits: u64,
    /// Device memory that was allocated or freed, for which the driver may wait for the GPU.
    pub allocations: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    launches: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) allocations: AtomicU64,
}

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: the driver's functions may be called from any thread; a handle is only a name.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that nobody has, in this process or another.
    pub free_bytes: usize,
    /// Bytes that there are.
    pub total_bytes: usize,
}

impl Context {
    pub(super) fn new(device: &Device) -> Result<Context> {
        let limits = device.limits()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call; the release is in `drop`.
        unsafe { call!(device.api(), context_retain(&mut handle, device.handle())) }?;
        let counters = Counters::default();
        Ok(Context(Arc::new(Inner { device: device.clone(), handle, limits, counters })))
    }

    /// Its GPU.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// What its GPU gives to a launch.
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.limits
    }

    /// What was asked of the driver so far.
    pub fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { launches, waits, allocations } = &self.0.counters;
        Counts { launches: of(launches), waits: of(waits), allocations: of(allocations) }
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// A kernel, a product or a plan was launched.
    pub(crate) fn count_launch(&self) {
        count(&self.0.counters.launches);
    }

    /// Whether it is this context.
    pub fn same(&self, other: &Context) -> bool {
        self.0.handle == other.0.handle
    }

    pub(super) fn handle(&self) -> Handle {
        self.0.handle
    }

    /// The functions, after this context has become that of the calling thread.
    pub(crate) fn enter(&self) -> Result<&Api> {
        let api = self.0.device.api();
        let mut current = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        unsafe { call!(api, context_current(&mut current)) }?;
        if current != self.0.handle {
            // SAFETY: the handle is that of a context which is retained until `drop`.
            unsafe { call!(api, context_enter(self.0.handle)) }?;
        }
        Ok(api)
    }

    /// Does what ends something of this context. Errors have nobody to go to: those of a GPU come out of the next call,
    /// and after the end of the context everything in it has ended.
    pub(super) fn end(&self, end: impl FnOnce(&Api)) {
        if let Ok(api) = self.enter() {
            end(api);
        }
    }

    /// Returns when the GPU has done all that this context was asked to.
    ///
    /// # Errors
    /// What a launch met, or the driver's own, as for all that follow.
    pub fn synchronize(&self) -> Result<()> {
        count(&self.0.counters.waits);
        // SAFETY: no condition.
        unsafe { call!(self.enter()?, context_synchronize()) }
    }

    /// How much memory there is now.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        let (mut free_bytes, mut total_bytes) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        unsafe { call!(self.enter()?, memory_info(&mut free_bytes, &mut total_bytes)) }?;
        Ok(MemoryInfo { free_bytes, total_bytes })
    }

    /// A new stream. It does not wait for the default stream.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// A new stream of the highest priority that the GPU knows: for short work that others wait for.
    pub fn priority_stream(&self) -> Result<Stream> {
        Stream::first(self)
    }

    /// A new event, for order only.
    pub fn event(&self) -> Result<Event> {
        Event::new(self)
    }

    /// A new event that also knows its time.
    pub fn timing_event(&self) -> Result<Event> {
        Event::timing(self)
    }

    /// Memory of the GPU, in which nothing was written yet.
    ///
    /// # Errors
    /// [`Error::Driver`], of which [`DriverError::is_out_of_memory`](super::DriverError::is_out_of_memory) tells whether less would have gone.
    pub fn alloc(&self, bytes: usize) -> Result<DeviceMemory> {
        DeviceMemory::new(self, bytes)
    }

    /// Memory of the host that the GPU copies from and to by itself. It holds zeros.
    pub fn alloc_pinned(&self, bytes: usize) -> Result<Pinned> {
        Pinned::new(self, bytes)
    }

    /// Loads machine code.
    pub fn load(&self, cubin: &[u8]) -> Result<Module> {
        Module::new(self, cubin)
    }

    pub(crate) fn expect_same(&self, other: &Context, what: &'static str) -> Result<()> {
        if self.same(other) { Ok(()) } else { Err(Error::OtherContext { what }) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: retained once, and everything in it has ended, since it kept this alive. A failure means that the context
        // is gone.
        let _: std::result::Result<(), _> =
            unsafe { call!(self.device.api(), context_release(self.device.handle())) };
    }
}
