//! Copies in all directions, and the filling of memory.

use super::api::call;
use super::memory::Slice;
use super::pinned::Pinned;
use super::stream::Stream;
use super::uses::Use;
use crate::error::{Error, Result};

fn same_length(from: usize, to: usize) -> Result<()> {
    if from == to { Ok(()) } else { Err(Error::Lengths { from, to }) }
}

/// Copies. The order of the stream holds for them as for launches.
///
/// # Errors
/// [`Error::Lengths`] if the sides differ, [`Error::OtherContext`] and [`Error::Range`]; what an earlier launch met, or the
/// driver's own.
impl Stream {
    /// Copies pinned memory from its byte `offset` on to a GPU, later. The host can change it when it was copied.
    pub fn copy_to_device(&self, from: &Pinned, offset: usize, to: Slice<'_>) -> Result<()> {
        self.expect(to)?;
        in_pinned(from, offset, to.bytes())?;
        if to.bytes() == 0 {
            return Ok(());
        }
        self.tracked(from, Use::Read, |stream| {
            let api = stream.context().enter()?;
            // SAFETY: both sides have these bytes, and live until the copy is done: the host's side waits for the event, the
            // end of the device's side waits for the GPU.
            unsafe {
                call!(
                    api,
                    copy_to_device(
                        to.address(),
                        from.address().add(offset).cast(),
                        to.bytes(),
                        stream.handle()
                    )
                )
            }
        })
    }

    /// Copies from a GPU to pinned memory from its byte `offset` on, later. The host can read it when it was copied.
    pub fn copy_to_host(&self, from: Slice<'_>, to: &mut Pinned, offset: usize) -> Result<()> {
        self.expect(from)?;
        in_pinned(to, offset, from.bytes())?;
        if from.bytes() == 0 {
            return Ok(());
        }
        self.tracked(to, Use::Write, |stream| {
            let api = stream.context().enter()?;
            // SAFETY: as above.
            unsafe {
                call!(
                    api,
                    copy_to_host(
                        to.address().add(offset).cast(),
                        from.address(),
                        from.bytes(),
                        stream.handle()
                    )
                )
            }
        })
    }

    /// Does a copy behind those that it is in conflict with, and with an event behind it, which the pinned memory waits for.
    fn tracked(&self, pinned: &Pinned, how: Use, copy: impl FnOnce(&Stream) -> Result<()>) -> Result<()> {
        let event = self.context().event()?;
        pinned.uses().order(self, how)?;
        copy(self)?;
        match event.record(self) {
            Ok(()) => {
                pinned.uses().add(event, how);
                Ok(())
            }
            Err(error) => {
                // Nothing would wait for the copy otherwise.
                drop(self.synchronize());
                Err(error)
            }
        }
    }

    /// Copies between two stretches of device memory, later; also between two GPUs.
    pub fn copy(&self, from: Slice<'_>, to: Slice<'_>) -> Result<()> {
        same_length(from.bytes(), to.bytes())?;
        if !from.context().same(self.context()) {
            self.expect(to)?;
        }
        let bytes = from.bytes();
        if from.context().same(to.context()) && from.overlaps(&to) && bytes > 0 {
            return Err(from.wrong(0..bytes, "source of a copy to bytes of its own"));
        }
        if bytes == 0 {
            return Ok(());
        }
        let api = self.context().enter()?;
        if from.context().same(to.context()) {
            // SAFETY: both sides have these bytes and live until the copy is done, since their end waits for the GPU.
            return unsafe { call!(api, copy_on_device(to.address(), from.address(), bytes, self.handle())) };
        }
        let (to_context, from_context) = (to.context().handle(), from.context().handle());
        // SAFETY: as above, each in its context.
        unsafe {
            call!(
                api,
                copy_to_peer(to.address(), to_context, from.address(), from_context, bytes, self.handle())
            )
        }?;
        // The end of memory waits for its own GPU alone, and the other one does the copy.
        self.synchronize()
    }

    /// Copies any memory of the host to a GPU, and waits.
    pub fn write_now(&self, from: &[u8], to: Slice<'_>) -> Result<()> {
        same_length(from.len(), to.bytes())?;
        self.expect(to)?;
        if from.is_empty() {
            return Ok(());
        }
        let api = self.context().enter()?;
        // SAFETY: both sides have these bytes and live until the copy is done, which is waited for. Where the wait fails the
        // context is lost, in which nothing runs any more.
        unsafe { call!(api, copy_to_device(to.address(), from.as_ptr().cast(), from.len(), self.handle())) }?;
        self.synchronize()
    }

    /// Copies from a GPU to any memory of the host, and waits.
    pub fn read_now(&self, from: Slice<'_>, to: &mut [u8]) -> Result<()> {
        same_length(from.bytes(), to.len())?;
        self.expect(from)?;
        if to.is_empty() {
            return Ok(());
        }
        let api = self.context().enter()?;
        // SAFETY: as above.
        unsafe { call!(api, copy_to_host(to.as_mut_ptr().cast(), from.address(), to.len(), self.handle())) }?;
        self.synchronize()
    }

    /// Writes the same value to all bytes, later.
    pub fn fill(&self, to: Slice<'_>, value: u8) -> Result<()> {
        self.expect(to)?;
        if to.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: the memory has these bytes.
        unsafe { call!(self.context().enter()?, set_bytes(to.address(), value, to.bytes(), self.handle())) }
    }

    /// Writes the same value to all words of 32 bits, later.
    pub fn fill_words(&self, to: Slice<'_>, value: u32) -> Result<()> {
        self.expect(to)?;
        if !to.bytes().is_multiple_of(4) || !to.address().is_multiple_of(4) {
            return Err(to.wrong(0..to.bytes(), "words of 32 bits"));
        }
        if to.bytes() == 0 {
            return Ok(());
        }
        let words = to.bytes() / 4;
        // SAFETY: the memory has these words, and they are aligned.
        unsafe { call!(self.context().enter()?, set_words(to.address(), value, words, self.handle())) }
    }

    fn expect(&self, slice: Slice<'_>) -> Result<()> {
        self.context().expect_same(slice.context(), "the memory")
    }
}

/// Whether pinned memory has these bytes.
fn in_pinned(pinned: &Pinned, offset: usize, bytes: usize) -> Result<()> {
    let end = offset.saturating_add(bytes);
    if end <= pinned.bytes() {
        return Ok(());
    }
    Err(Error::Range { start: offset, end, what: "stretch".into(), bytes: pinned.bytes() })
}
