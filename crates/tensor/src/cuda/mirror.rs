//! The copy on a GPU of memory that the host sees as well: the shared memory in which ranks meet.
//!
//! The host may change its memory whenever no launch is pending on it, so whoever touches it waits first
//! ([`Mirror::settle`]): what launches have written is copied back then, and the next launch copies anew.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_cuda::driver::Slice;
use oarlock_kernels::{Error, Result};

use super::{Block, Gpu};
use crate::launch::{Mode, offset};

/// A stretch of host memory with its copy.
pub(crate) struct Mirror {
    gpu: Arc<Gpu>,
    host: NonNull<u8>,
    bytes: usize,
    copy: Arc<Block>,
    state: Mutex<State>,
}

// SAFETY: it is an address and a copy. The host's memory is touched in `before` and `settle`, where the protocol of its
// owner says that nobody else does.
unsafe impl Send for Mirror {}
// SAFETY: as above; both work under the lock.
unsafe impl Sync for Mirror {}

#[derive(Default)]
struct State {
    /// Whether the copy has all that the host's memory has.
    current: bool,
    /// What launches have written since, and the host's memory does not have.
    written: Vec<Range<usize>>,
}

impl Mirror {
    /// Of `bytes` bytes from `host` on, which live as long as somebody may call this.
    pub fn new(gpu: &Arc<Gpu>, host: NonNull<u8>, bytes: usize) -> Result<Mirror> {
        let what = "copies of shared memory";
        let copy = gpu.alloc(bytes)?.ok_or(Error::OutOfMemory { bytes, what })?;
        Ok(Mirror { gpu: gpu.clone(), host, bytes, copy, state: Mutex::default() })
    }

    pub fn is_of(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is written is added in one step, and taken out when it was copied.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host's memory from byte `start` on.
    pub fn host_at(&self, start: usize) -> NonNull<u8> {
        offset(self.host, start)
    }

    /// The copy of these bytes.
    pub fn slice(&self, start: usize, bytes: usize) -> Result<Slice<'_>> {
        self.copy.slice(start, bytes)
    }

    /// Before a launch that uses these bytes: what it needs is on the GPU.
    pub fn before(&self, range: Range<usize>, mode: Mode) -> Result<()> {
        let mut state = self.state();
        let all = 0..self.bytes;
        if state.current || mode == Mode::Write && range == all {
            return Ok(());
        }
        // SAFETY: the bytes live, and nobody writes them until somebody has called `settle`.
        let host = unsafe { std::slice::from_raw_parts(self.host.as_ptr(), all.end) };
        self.copy.write(0, host)?;
        state.current = true;
        Ok(())
    }

    /// After a launch that uses these bytes.
    pub fn after(&self, range: Range<usize>, mode: Mode) {
        if mode == Mode::Read {
            return;
        }
        let mut state = self.state();
        state.current = true;
        if !state.written.iter().any(|other| other.start <= range.start && range.end <= other.end) {
            state.written.retain(|other| other.start < range.start || range.end < other.end);
            state.written.push(range);
        }
    }

    /// Copies to the host what launches have written, when they have run; from then on the host may change its memory.
    ///
    /// # Errors
    /// What a launch met.
    pub fn settle(&self) -> Result<()> {
        let mut state = self.state();
        state.current = false;
        for range in std::mem::take(&mut state.written) {
            let bytes = range.len();
            // SAFETY: the bytes live, and nobody else looks at them before this returns.
            let host = unsafe { std::slice::from_raw_parts_mut(self.host_at(range.start).as_ptr(), bytes) };
            self.copy.read(range.start, host)?;
        }
        // Launches that only read it must have read it.
        self.gpu.synchronize()
    }
}
