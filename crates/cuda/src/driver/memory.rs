//! Memory of a GPU, and stretches of it. A pool is made of few of these: allocating makes the GPU wait.

use std::ops::Range;

use super::api::{Address, call};
use super::context::{Context, count};
use crate::error::{Error, Result};

/// Memory of a GPU. Its end waits for all work of the GPU that may still use it.
pub struct DeviceMemory {
    context: Context,
    address: Address,
    bytes: usize,
}

impl DeviceMemory {
    pub(super) fn new(context: &Context, bytes: usize) -> Result<DeviceMemory> {
        let mut address = 0;
        // The driver refuses memory of no bytes.
        if bytes > 0 {
            // SAFETY: the pointer is valid for the call.
            unsafe { call!(context.enter()?, memory_alloc(&mut address, bytes)) }?;
            count(&context.counters().allocations);
        }
        Ok(DeviceMemory { context: context.clone(), address, bytes })
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address on the GPU, a multiple of 256; 0 if it has no bytes. The host cannot use it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// All of it.
    pub fn all(&self) -> Slice<'_> {
        Slice { memory: self, start: 0, bytes: self.bytes }
    }

    /// These bytes of it.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn slice(&self, range: Range<usize>) -> Result<Slice<'_>> {
        self.all().part(range)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        count(&self.context.counters().allocations);
        // SAFETY: allocated once, freed once. The driver waits for what uses it.
        self.context.end(|api| unsafe {
            (api.memory_free.call)(self.address);
        });
    }
}

/// A stretch of device memory.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    memory: &'a DeviceMemory,
    start: usize,
    bytes: usize,
}

impl<'a> Slice<'a> {
    /// The context that it belongs to.
    pub fn context(&self) -> &'a Context {
        &self.memory.context
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address on the GPU.
    pub fn address(&self) -> u64 {
        self.memory.address + self.start as u64
    }

    /// These bytes of it.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn part(self, range: Range<usize>) -> Result<Slice<'a>> {
        if range.start > range.end || range.end > self.bytes {
            return Err(self.wrong(range, "stretch"));
        }
        Ok(Slice { memory: self.memory, start: self.start + range.start, bytes: range.len() })
    }

    /// The error that a range of it is not what it should be.
    pub(crate) fn wrong(&self, range: Range<usize>, what: &str) -> Error {
        Error::Range { start: range.start, end: range.end, what: what.to_string(), bytes: self.bytes }
    }

    /// Whether it has bytes of the other one.
    pub(crate) fn overlaps(&self, other: &Slice) -> bool {
        let (a, b) = (self.address(), other.address());
        a < b + other.bytes as u64 && b < a + self.bytes as u64
    }
}
