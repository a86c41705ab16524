//! Pinned memory of the host, between which and a GPU copies run while the host does something else.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::api::call;
use super::context::Context;
use super::uses::{Use, Uses};
use crate::error::Result;

/// Pinned memory. Whoever looks into it waits for the copies that use it, and copies for each other.
pub struct Pinned {
    context: Context,
    ptr: NonNull<u8>,
    bytes: usize,
    uses: Uses,
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
        Ok(Pinned { context: context.clone(), ptr, bytes, uses: Uses::default() })
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its first byte. Whoever goes this way has called [`Pinned::settle`], follows the rules of references, and calls for
    /// no copy meanwhile.
    pub fn address(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(super) fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Returns when the host may use it in this way: when the copies that are in conflict with that are done.
    ///
    /// # Errors
    /// What a launch before the copies met, or the driver's own.
    pub fn settle(&self, how: Use) -> Result<()> {
        self.uses.settle(how)
    }

    /// Gives its bytes to `f`, after the copies that write it.
    ///
    /// # Errors
    /// As for [`Pinned::settle`].
    pub fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.settle(Use::Read)?;
        // SAFETY: the bytes are initialized. Copies that write them need `&mut self`, and those before are done.
        Ok(f(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.bytes) }))
    }

    /// Gives its bytes to `f` to change, after the copies that use it.
    ///
    /// # Errors
    /// As for [`Pinned::settle`].
    pub fn write<R>(&mut self, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.settle(Use::Write)?;
        // SAFETY: as in `read`; copies that read them need `&self`.
        Ok(f(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.bytes) }))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A copy that cannot be waited for belongs to a context that is lost or gone, where nothing runs any more.
        drop(self.settle(Use::Write));
        if self.bytes > 0 {
            // SAFETY: allocated once, freed once; no copy uses it.
            self.context.end(|api| unsafe {
                (api.host_free.call)(self.ptr.as_ptr().cast());
            });
        }
    }
}
