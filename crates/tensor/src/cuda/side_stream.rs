//! A second stream of a GPU, for collectives: how its work and launches wait for each other without the host.

use std::ops::Range;
use std::sync::Arc;

use oarlock_cuda::driver::{Context, Event, Slice, Stream};
use oarlock_kernels::{Error, Result};

use super::{Gpu, failed};
use crate::device::Device;
use crate::flat::{FlatBuffer, PendingLaunches};
use crate::launch::Owner;

/// A stream beside that of a GPU's launches. What it is given runs in its order, and in none with launches but that of
/// [`SideStream::follow`] and [`SideStream::precede`].
pub struct SideStream {
    stream: Stream,
    gpu: Arc<Gpu>,
}

/// A place among the launches of a GPU.
pub(crate) struct Mark(Event);

impl Gpu {
    /// The place behind all launches so far.
    pub fn mark(&self) -> Result<Mark> {
        self.stream.mark().map(Mark).map_err(failed)
    }
}

impl Mark {
    /// Returns when the launches before it have run.
    pub fn wait(&self) -> Result<()> {
        self.0.synchronize().map_err(failed)
    }
}

impl SideStream {
    /// A new stream of a device; `None` where that is not a GPU. It has the highest priority: a collective takes few
    /// multiprocessors, and launches that come after it wait for it, on this rank and on others.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn of(device: &Device) -> Result<Option<SideStream>> {
        let Some(gpu) = device.gpu() else { return Ok(None) };
        let stream = gpu.context.priority_stream().map_err(failed)?;
        Ok(Some(SideStream { stream, gpu: gpu.clone() }))
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The context of the GPU.
    pub fn context(&self) -> &Context {
        &self.gpu.context
    }

    /// These bytes of a flat buffer. What uses them in this stream must [`follow`](SideStream::follow) the launches that
    /// use them, and [`precede`](SideStream::precede) those that come later.
    ///
    /// # Errors
    /// [`Error::Usage`] for memory that is not in this GPU's pool, [`Error::Gpu`] for bytes outside.
    pub fn slice<'a>(&self, flat: &'a FlatBuffer, range: Range<usize>) -> Result<Slice<'a>> {
        let span = flat.span().part(range)?;
        match (span.owner, span.ptr) {
            (Owner::Cuda(block), Some(ptr)) if Arc::ptr_eq(&block.gpu, &self.gpu) => {
                block.slice(block.start_of(ptr), span.bytes)
            }
            _ => Err(Error::Usage("a collective of a GPU: its memory is elsewhere".to_string())),
        }
    }

    /// What the stream is given from now on comes after these launches; whether their place is known to a GPU, so that it
    /// does. If not, the host has to wait for them.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn follow(&self, launches: &PendingLaunches) -> Result<bool> {
        let Some(Mark(event)) = launches.mark() else { return Ok(false) };
        self.stream.wait(event).map_err(failed).map(|()| true)
    }

    /// Launches from now on come after what an event of this stream marks.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn precede(&self, event: &Event) -> Result<()> {
        self.gpu.stream.wait(event).map_err(failed)
    }
}
