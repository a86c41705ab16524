//! The functions of libcudnn's backend interface, as `cudnn_graph.h` declares them.

use std::ffi::{c_char, c_int, c_void};

pub(super) use crate::binding::call;
use crate::binding::{binding, string};
use crate::error::{Error, Result};

/// `cudnnStatus_t`; 0 is success.
pub(super) type Status = c_int;
/// The library's handle, its descriptors, and a stream.
pub(super) type Handle = *mut c_void;
/// Bytes of the longest message.
const MESSAGE_BYTES: usize = 1024;

binding! { Cudnn;
    -> Status {
        create: "cudnnCreate" (*mut Handle);
        destroy: "cudnnDestroy" (Handle);
        set_stream: "cudnnSetStream" (Handle, Handle);
        descriptor_create: "cudnnBackendCreateDescriptor" (c_int, *mut Handle);
        descriptor_destroy: "cudnnBackendDestroyDescriptor" (Handle);
        descriptor_set: "cudnnBackendSetAttribute" (Handle, c_int, c_int, i64, *const c_void);
        descriptor_get: "cudnnBackendGetAttribute" (Handle, c_int, c_int, i64, *mut i64, *mut c_void);
        finalize: "cudnnBackendFinalize" (Handle);
        execute: "cudnnBackendExecute" (Handle, Handle, Handle);
    }
    -> usize {
        get_version: "cudnnGetVersion" ();
        get_cudart_version: "cudnnGetCudartVersion" ();
    }
    -> *const c_char {
        error_string: "cudnnGetErrorString" (Status);
    }
    -> () {
        last_error: "cudnnGetLastErrorString" (*mut c_char, usize);
    }
}

impl Api {
    /// Its version, such as `9.28.1`.
    pub(super) fn version(&self) -> String {
        // SAFETY: no condition.
        let version = unsafe { (self.get_version.call)() };
        format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
    }

    /// The version of CUDA that it was built with, such as 13.
    pub(super) fn cuda_major(&self) -> usize {
        // SAFETY: no condition.
        unsafe { (self.get_cudart_version.call)() / 1000 }
    }

    /// An error where the status is none of success.
    pub(super) fn check(&self, (call, status): (&'static str, Status)) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut message = [0u8; MESSAGE_BYTES];
        // SAFETY: the first function takes any number, and its strings live forever; the second one writes a string into as
        // many bytes as it is told, the last of which stays zero.
        let (name, text) = unsafe {
            (self.last_error.call)(message.as_mut_ptr().cast(), MESSAGE_BYTES - 1);
            (string((self.error_string.call)(status)), string(message.as_ptr().cast()))
        };
        let status = name.unwrap_or_else(|| format!("status {status}"));
        Err(Error::Cudnn { call, version: self.version(), status, text: text.unwrap_or_default() })
    }
}
