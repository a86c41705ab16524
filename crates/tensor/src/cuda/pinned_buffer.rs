//! Pinned memory of the host in which state of a GPU lies between its uses, and copies from and to there that overlap
//! launches.
//!
//! ```text
//! launches  update 0            update 1            update 2
//! uploads   1                   2                   3
//! downloads                     0                   1
//! ```
//!
//! Uploads and downloads have a stream each, so that both directions of the bus are in use at once. Each copy begins
//! behind what was called before it, and what is launched after it begins behind the copy. So a loop calls for the next
//! piece before it updates the one that it has, and the host waits for nothing.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_cuda::driver::{Pinned, Slice, Stream};
use oarlock_kernels::{Error, Result};

use super::{Gpu, failed};
use crate::device::Device;
use crate::flat::FlatBuffer;
use crate::launch::{Owner, Span};

/// Pinned memory, zeroed. Clones share it.
#[derive(Clone)]
pub struct PinnedBuffer(Arc<Inner>);

struct Inner {
    memory: Mutex<Pinned>,
    bytes: usize,
    gpu: Arc<Gpu>,
}

/// The streams of copies.
pub(crate) struct CopyStreams {
    up: Stream,
    down: Stream,
}

impl CopyStreams {
    pub fn new(context: &oarlock_cuda::driver::Context) -> oarlock_cuda::Result<CopyStreams> {
        Ok(CopyStreams { up: context.stream()?, down: context.stream()? })
    }
}

impl std::fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedBuffer({} bytes)", self.0.bytes)
    }
}

impl PinnedBuffer {
    /// So many bytes for a GPU.
    ///
    /// # Errors
    /// [`Error::Usage`] for another device; no memory that can be pinned.
    pub fn new(device: &Device, bytes: usize) -> Result<PinnedBuffer> {
        let gpu = device.gpu().ok_or_else(|| Error::Usage("pinned memory is for GPUs".to_string()))?.clone();
        let memory = Mutex::new(gpu.context.pinned(bytes).map_err(failed)?);
        Ok(PinnedBuffer(Arc::new(Inner { memory, bytes, gpu })))
    }

    /// Its size.
    pub fn len_bytes(&self) -> usize {
        self.0.bytes
    }

    fn memory(&self) -> MutexGuard<'_, Pinned> {
        // A panic elsewhere leaves bytes that somebody has not written.
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies bytes from byte `first` on to the bytes `range` of a buffer, later. What is launched from now on finds them.
    ///
    /// # Errors
    /// Bytes that are not there, a buffer of another device or that is in use, and what an earlier launch met.
    pub fn upload(&self, first: usize, to: &FlatBuffer, range: Range<usize>) -> Result<()> {
        let mut lease = to.write()?;
        let (memory, gpu) = (self.memory(), &self.0.gpu);
        self.ordered(&gpu.copies()?.up, lease.span().part(range)?, |stream, to| {
            stream.copy_to_device(&memory, first, to).map_err(failed)
        })
    }

    /// Copies the bytes `range` of a buffer to those from byte `first` on, later. What is launched from now on may write
    /// the buffer.
    ///
    /// # Errors
    /// As [`PinnedBuffer::upload`].
    pub fn download(&self, first: usize, from: &FlatBuffer, range: Range<usize>) -> Result<()> {
        let lease = from.read()?;
        let (mut memory, gpu) = (self.memory(), &self.0.gpu);
        self.ordered(&gpu.copies()?.down, lease.span().part(range)?, |stream, from| {
            stream.copy_to_host(from, &mut memory, first).map_err(failed)
        })
    }

    /// Calls for a copy behind all launches, and has later ones wait for it.
    fn ordered(
        &self,
        stream: &Stream,
        span: Span<'_>,
        copy: impl FnOnce(&Stream, Slice<'_>) -> Result<()>,
    ) -> Result<()> {
        let gpu = &self.0.gpu;
        let (Owner::Cuda(block), Some(ptr)) = (span.owner, span.ptr) else {
            return Err(Error::Usage("pinned memory is copied from and to buffers of its GPU".to_string()));
        };
        if !Arc::ptr_eq(&block.gpu, gpu) {
            return Err(Error::Usage("pinned memory of another GPU".to_string()));
        }
        let slice = block.slice(block.start_of(ptr), span.bytes)?;
        let launched = gpu.stream.mark().map_err(failed)?;
        stream.wait(&launched).map_err(failed)?;
        copy(stream, slice)?;
        let copied = stream.mark().map_err(failed)?;
        gpu.stream.wait(&copied).map_err(failed)
    }

    /// Shows its bytes to the host, after the copies that were called for.
    ///
    /// # Errors
    /// Bytes that are not there, and what an earlier launch met.
    pub fn read_with<R>(&self, range: Range<usize>, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.check(&range)?;
        self.memory().read(|bytes| f(&bytes[range])).map_err(failed)
    }

    /// Lets the host write bytes, after the copies that were called for.
    ///
    /// # Errors
    /// As [`PinnedBuffer::read_with`].
    pub fn write_with<R>(&self, range: Range<usize>, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.check(&range)?;
        self.memory().write(|bytes| f(&mut bytes[range])).map_err(failed)
    }

    fn check(&self, range: &Range<usize>) -> Result<()> {
        if range.start <= range.end && range.end <= self.0.bytes {
            return Ok(());
        }
        Err(Error::Usage(format!("bytes {range:?} of {} that are pinned", self.0.bytes)))
    }
}
