//! Pinned memory of the host, between which and a GPU copies run while the host does something else.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::api::call;
use super::context::Context;
use super::stream::Event;
use crate::error::Result;

/// So many copies are remembered before those that are done are forgotten.
const MANY: usize = 16;

/// Pinned memory. Whoever looks into it waits for the copies that use it.
pub struct Pinned {
    context: Context,
    ptr: NonNull<u8>,
    bytes: usize,
    uses: Mutex<Vec<Event>>,
}

// SAFETY: it owns its bytes. Those are reached through `read` and `write`, which follow the rules of references, and by
// copies of the GPU, which both wait for.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn new(context: &Context, bytes: usize) -> Result<Pinned> {
        let mut ptr: *mut c_void = std::ptr::null_mut();
        if bytes > 0 {
            // SAFETY: the pointer is valid for the call; the flags ask for nothing special.
            unsafe { call!(context.enter()?, host_alloc(&mut ptr, bytes, 0)) }?;
            // SAFETY: the memory is new and has this length. Its content is not defined before.
            unsafe { ptr.cast::<u8>().write_bytes(0, bytes) };
        }
        let ptr = NonNull::new(ptr.cast()).unwrap_or(NonNull::dangling());
        Ok(Pinned { context: context.clone(), ptr, bytes, uses: Mutex::default() })
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn address(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    fn uses(&self) -> MutexGuard<'_, Vec<Event>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a copy, by an event behind it.
    pub(super) fn used(&self, event: Event) {
        let mut uses = self.uses();
        if uses.len() >= MANY {
            uses.retain(|event| !matches!(event.is_done(), Ok(true)));
        }
        uses.push(event);
    }

    /// Waits for all copies from and to it.
    fn settle(&self) -> Result<()> {
        let mut uses = self.uses();
        uses.iter().try_for_each(Event::synchronize)?;
        uses.clear();
        Ok(())
    }

    /// Gives its bytes to `f`, after the copies that use it.
    ///
    /// # Errors
    /// What a launch before the copies met, or the driver's own.
    pub fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.settle()?;
        // SAFETY: the bytes are initialized. Copies that write them need `&mut self`, and those before are done.
        Ok(f(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.bytes) }))
    }

    /// Gives its bytes to `f` to change, after the copies that use it.
    ///
    /// # Errors
    /// As for [`Pinned::read`].
    pub fn write<R>(&mut self, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.settle()?;
        // SAFETY: as in `read`; copies that read them need `&self`.
        Ok(f(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.bytes) }))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A copy that cannot be waited for belongs to a context that is lost or gone, where nothing runs any more.
        drop(self.settle());
        if self.bytes > 0 {
            // SAFETY: allocated once, freed once; no copy uses it.
            self.context.end(|api| unsafe {
                (api.host_free.call)(self.ptr.as_ptr().cast());
            });
        }
    }
}
