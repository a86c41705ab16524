//! The functions of libcuda, as `cuda.h` declares them.

use std::ffi::{CStr, c_char, c_float, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::os::unix::{Library as Loaded, RTLD_NOW};

use super::error::DriverError;
use crate::error::{Error, Result};
use crate::libraries::Library;

/// `CUresult`; 0 is success.
pub(crate) type Code = c_int;
/// `CUdevice`.
pub(crate) type DeviceHandle = c_int;
/// `CUdeviceptr`.
pub(crate) type Address = u64;
/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule` and `CUfunction`.
pub(crate) type Handle = *mut c_void;

/// Declares the table: `field: "symbol" (types);`, all of which return a `CUresult`.
macro_rules! functions {
    ($($field:ident: $symbol:literal ($($arg:ty),*);)+) => {
        /// The functions that are used.
        pub(crate) struct Api {
            $(pub(crate) $field: Function<unsafe extern "C" fn($($arg),*) -> Code>,)+
            /// Never unloaded: the driver has threads and handlers of its own in the process.
            _library: ManuallyDrop<Loaded>,
        }

        impl Api {
            fn resolve(library: Loaded) -> std::result::Result<Api, String> {
                let text = |error: libloading::Error| error.to_string();
                // SAFETY: the types are those of cuda.h, which every driver since CUDA 11 has.
                unsafe {
                    Ok(Api {
                        $($field: Function {
                            name: $symbol,
                            call: *library.get(concat!($symbol, "\0").as_bytes()).map_err(text)?,
                        },)+
                        _library: ManuallyDrop::new(library),
                    })
                }
            }
        }
    };
}

/// A function and its name.
pub(crate) struct Function<F> {
    pub(crate) name: &'static str,
    pub(crate) call: F,
}

functions! {
    error_name: "cuGetErrorName" (Code, *mut *const c_char);
    error_string: "cuGetErrorString" (Code, *mut *const c_char);
    init: "cuInit" (c_uint);
    driver_version: "cuDriverGetVersion" (*mut c_int);
    device_count: "cuDeviceGetCount" (*mut c_int);
    device: "cuDeviceGet" (*mut DeviceHandle, c_int);
    device_name: "cuDeviceGetName" (*mut c_char, c_int, DeviceHandle);
    device_uuid: "cuDeviceGetUuid_v2" (*mut [u8; 16], DeviceHandle);
    device_memory: "cuDeviceTotalMem_v2" (*mut usize, DeviceHandle);
    device_attribute: "cuDeviceGetAttribute" (*mut c_int, c_int, DeviceHandle);
    device_bus: "cuDeviceGetPCIBusId" (*mut c_char, c_int, DeviceHandle);
    context_retain: "cuDevicePrimaryCtxRetain" (*mut Handle, DeviceHandle);
    context_release: "cuDevicePrimaryCtxRelease_v2" (DeviceHandle);
    context_current: "cuCtxGetCurrent" (*mut Handle);
    context_enter: "cuCtxSetCurrent" (Handle);
    context_synchronize: "cuCtxSynchronize" ();
    memory_info: "cuMemGetInfo_v2" (*mut usize, *mut usize);
    memory_alloc: "cuMemAlloc_v2" (*mut Address, usize);
    memory_free: "cuMemFree_v2" (Address);
    host_alloc: "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free: "cuMemFreeHost" (*mut c_void);
    copy_to_device: "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
    copy_to_host: "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
    copy_on_device: "cuMemcpyDtoDAsync_v2" (Address, Address, usize, Handle);
    copy_to_peer: "cuMemcpyPeerAsync" (Address, Handle, Address, Handle, usize, Handle);
    set_bytes: "cuMemsetD8Async" (Address, u8, usize, Handle);
    set_words: "cuMemsetD32Async" (Address, c_uint, usize, Handle);
    stream_create: "cuStreamCreate" (*mut Handle, c_uint);
    stream_destroy: "cuStreamDestroy_v2" (Handle);
    stream_synchronize: "cuStreamSynchronize" (Handle);
    stream_wait: "cuStreamWaitEvent" (Handle, Handle, c_uint);
    event_create: "cuEventCreate" (*mut Handle, c_uint);
    event_destroy: "cuEventDestroy_v2" (Handle);
    event_record: "cuEventRecord" (Handle, Handle);
    event_query: "cuEventQuery" (Handle);
    event_synchronize: "cuEventSynchronize" (Handle);
    event_elapsed: "cuEventElapsedTime" (*mut c_float, Handle, Handle);
    module_load: "cuModuleLoadData" (*mut Handle, *const c_void);
    module_unload: "cuModuleUnload" (Handle);
    module_function: "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    function_set: "cuFuncSetAttribute" (Handle, c_int, c_int);
    function_get: "cuFuncGetAttribute" (*mut c_int, c_int, Handle);
    launch: "cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void,
        *mut *mut c_void);
}

/// Calls a function of the table with the arguments of its type. Whoever uses it says why they are valid.
macro_rules! call {
    ($api:expr, $field:ident($($arg:expr),* $(,)?)) => {{
        let function = &$api.$field;
        $api.check(function.name, (function.call)($($arg),*))
    }};
}
pub(super) use call;

impl Api {
    /// Loads a file and finds its functions.
    pub(super) fn load(file: &Path) -> Result<Api> {
        // SAFETY: libcuda's initialization has no conditions.
        let loaded = unsafe { Loaded::open(Some(file), RTLD_NOW) }.map_err(|error| error.to_string());
        loaded.and_then(Api::resolve).map_err(|reason| Error::Unusable {
            library: Library::Driver,
            file: file.into(),
            reason,
        })
    }

    /// The error of a call that did not succeed.
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code).into()) }
    }

    fn error(&self, call: &'static str, code: Code) -> DriverError {
        let text = |function: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text = std::ptr::null();
            // SAFETY: the function takes any number; the pointer is valid for the call.
            let failed = unsafe { function(code, &mut text) } != 0;
            if failed || text.is_null() {
                return None;
            }
            // SAFETY: the driver's strings end with zero and live forever.
            Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        DriverError {
            call,
            code,
            name: text(self.error_name.call).unwrap_or_else(|| format!("CUresult {code}")),
            text: text(self.error_string.call)
                .unwrap_or_else(|| "an error that the driver does not know".into()),
        }
    }
}
