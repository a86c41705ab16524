//! Pinned memory of the host in which state of a GPU lies between its uses, and copies from and to there that overlap
//! launches.
//!
//! Uploads and downloads have a stream each, so that both directions of the bus and the kernels are busy at once. A copy
//! begins behind what was launched before it. What uses one of its sides afterward waits for it, and nothing else does:
//! a launch by the event that the [`Block`] carries, also where the pool has given the block to somebody else meanwhile,
//! and the host by the event that the pinned memory carries.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_cuda::driver::{Context, Pinned, Stream, Use};
use oarlock_kernels::Result;

use super::{Block, Gpu, failed, use_of};
use crate::launch::Mode;

/// A block of pinned memory. The host uses it as any of its memory, after [`PinnedBlock::settle`].
pub(crate) struct PinnedBlock {
    memory: Mutex<Pinned>,
    first: NonNull<u8>,
    gpu: Arc<Gpu>,
}

// SAFETY: the address is that of the block's own memory, which is reached by the rules of its owner, a buffer.
unsafe impl Send for PinnedBlock {}
// SAFETY: as above.
unsafe impl Sync for PinnedBlock {}

/// The streams of copies, beside that of launches.
pub(crate) struct CopyStreams {
    up: Stream,
    down: Stream,
}

impl CopyStreams {
    pub fn new(context: &Context) -> oarlock_cuda::Result<CopyStreams> {
        Ok(CopyStreams { up: context.stream()?, down: context.stream()? })
    }
}

impl Gpu {
    /// Pinned memory for copies from and to this GPU, which holds zeros; `None` where there is no more.
    ///
    /// # Errors
    /// What launches before have met, and other errors of the driver.
    pub fn alloc_pinned(self: &Arc<Self>, bytes: usize) -> Result<Option<Arc<PinnedBlock>>> {
        match self.context.alloc_pinned(bytes) {
            Ok(memory) => {
                let first = NonNull::new(memory.address()).unwrap_or(NonNull::dangling());
                Ok(Some(Arc::new(PinnedBlock { memory: Mutex::new(memory), first, gpu: self.clone() })))
            }
            Err(oarlock_cuda::Error::Driver(error)) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

impl PinnedBlock {
    /// Its first byte.
    pub fn ptr(&self) -> NonNull<u8> {
        self.first
    }

    fn memory(&self) -> MutexGuard<'_, Pinned> {
        // A panic elsewhere leaves bytes that somebody has not written.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the copies are done that the host must not meet.
    ///
    /// # Errors
    /// What a launch before the copies met.
    pub fn settle(&self, mode: Mode) -> Result<()> {
        self.memory().settle(use_of(mode)).map_err(failed)
    }

    /// Copies `bytes` bytes from this address in it to a block, later.
    ///
    /// # Errors
    /// Bytes that are not there, a block of another GPU, and what an earlier launch met.
    pub fn upload(&self, from: NonNull<u8>, to: &Block, start: usize, bytes: usize) -> Result<()> {
        let (memory, stream) = (self.memory(), &self.gpu.copies()?.up);
        self.beside(stream, to, Use::Write, |stream| {
            stream.copy_to_device(&memory, self.offset_of(from), to.part(start, bytes)?)
        })
    }

    /// Copies `bytes` bytes of a block to this address in it, later.
    ///
    /// # Errors
    /// As [`PinnedBlock::upload`].
    pub fn download(&self, from: &Block, start: usize, to: NonNull<u8>, bytes: usize) -> Result<()> {
        let (mut memory, stream) = (self.memory(), &self.gpu.copies()?.down);
        self.beside(stream, from, Use::Read, |stream| {
            let from = from.part(start, bytes)?;
            stream.copy_to_host(from, &mut memory, self.offset_of(to))
        })
    }

    fn offset_of(&self, ptr: NonNull<u8>) -> usize {
        ptr.addr().get().saturating_sub(self.first.addr().get())
    }

    /// Calls for a copy from or to a block: behind all launches and the other copies of the block, which then carries
    /// an event of this one. That pinned memory does the same is seen to by the copy itself.
    fn beside(
        &self,
        stream: &Stream,
        block: &Block,
        how: Use,
        copy: impl FnOnce(&Stream) -> oarlock_cuda::Result<()>,
    ) -> Result<()> {
        let run = || {
            stream.wait(&self.gpu.stream.mark()?)?;
            block.copies.order(stream, how)?;
            copy(stream)?;
            match stream.mark() {
                Ok(event) => {
                    block.copies.add(event, how);
                    Ok(())
                }
                Err(error) => {
                    // Nothing would wait for the copy otherwise.
                    drop(stream.synchronize());
                    Err(error)
                }
            }
        };
        run().map_err(failed)
    }
}
