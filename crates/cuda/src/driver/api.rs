//! The functions of libcuda, as `cuda.h` declares them.

use std::ffi::{c_char, c_float, c_int, c_uint, c_void};

use super::error::DriverError;
use crate::binding::{binding, string};
use crate::error::Result;

/// `CUresult`; 0 is success.
pub(crate) type Code = c_int;
/// `CUdevice`.
pub(crate) type DeviceHandle = c_int;
/// `CUdeviceptr`.
pub(crate) type Address = u64;
/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule` and `CUfunction`.
pub(crate) type Handle = *mut c_void;

binding! { Driver;
    -> Code {
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
        stream_create_with_priority: "cuStreamCreateWithPriority" (*mut Handle, c_uint, c_int);
        stream_priorities: "cuCtxGetStreamPriorityRange" (*mut c_int, *mut c_int);
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
    /// The newest version of CUDA that the driver supports.
    pub(super) fn cuda_version(&self) -> Result<(u32, u32)> {
        let mut version: c_int = 0;
        // SAFETY: the pointer is valid for the call.
        unsafe { call!(self, driver_version(&mut version)) }?;
        let version = u32::try_from(version).unwrap_or_default();
        Ok((version / 1000, version % 1000 / 10))
    }

    /// The error of a call that did not succeed.
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code).into()) }
    }

    fn error(&self, call: &'static str, code: Code) -> DriverError {
        let text = |function: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text = std::ptr::null();
            // SAFETY: the function takes any number; the pointer is valid for the call.
            if unsafe { function(code, &mut text) } != 0 {
                return None;
            }
            // SAFETY: the driver's strings end with zero and live forever.
            unsafe { string(text) }
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
