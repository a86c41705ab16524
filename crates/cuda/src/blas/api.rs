//! The functions of libcublasLt, as `cublasLt.h` declares them, and what they make.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::os::unix::{Library as Loaded, RTLD_NOW};

use crate::error::{Error, Result};
use crate::libraries::Library;

/// `cublasStatus_t`; 0 is success.
pub(super) type Status = c_int;
/// The library's handle, and its descriptors.
pub(super) type Handle = *mut c_void;
/// `CUBLAS_STATUS_NOT_SUPPORTED`.
pub(super) const NOT_SUPPORTED: Status = 15;

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Algo {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
pub(super) struct Choice {
    pub(super) algo: Algo,
    workspace_bytes: usize,
    pub(super) state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

impl Choice {
    pub(super) fn none() -> Choice {
        let algo = Algo { data: [0; 8] };
        Choice { algo, workspace_bytes: 0, state: NOT_SUPPORTED, waves: 0.0, reserved: [0; 4] }
    }
}

type Attribute = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> Status;
type Destroy = unsafe extern "C" fn(Handle) -> Status;
type Heuristic = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    c_int,
    *mut Choice,
    *mut c_int,
) -> Status;
type Matmul = unsafe extern "C" fn(
    Handle,
    Handle,
    *const c_void,
    u64,
    Handle,
    u64,
    Handle,
    *const c_void,
    u64,
    Handle,
    u64,
    Handle,
    *const Algo,
    u64,
    usize,
    Handle,
) -> Status;

/// The functions that are used. Device pointers are declared as the numbers that they are on the host.
pub(super) struct Api {
    get_version: unsafe extern "C" fn() -> usize,
    status_name: unsafe extern "C" fn(Status) -> *const c_char,
    status_string: unsafe extern "C" fn(Status) -> *const c_char,
    pub(super) create: unsafe extern "C" fn(*mut Handle) -> Status,
    pub(super) destroy: Destroy,
    pub(super) desc_create: unsafe extern "C" fn(*mut Handle, c_int, c_int) -> Status,
    pub(super) desc_destroy: Destroy,
    pub(super) desc_set: Attribute,
    pub(super) layout_create: unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> Status,
    pub(super) layout_destroy: Destroy,
    pub(super) layout_set: Attribute,
    pub(super) preference_create: unsafe extern "C" fn(*mut Handle) -> Status,
    pub(super) preference_destroy: Destroy,
    pub(super) preference_set: Attribute,
    pub(super) heuristic: Heuristic,
    pub(super) matmul: Matmul,
    /// Never unloaded, as the driver that it uses.
    _library: ManuallyDrop<Loaded>,
}

impl Api {
    /// Loads a file and finds its functions.
    pub(super) fn load(file: &Path) -> Result<Api> {
        // SAFETY: the library's initialization has no conditions.
        let loaded = unsafe { Loaded::open(Some(file), RTLD_NOW) }.map_err(|error| error.to_string());
        loaded.and_then(Api::resolve).map_err(|reason| Error::Unusable {
            library: Library::CublasLt,
            file: file.into(),
            reason,
        })
    }

    fn resolve(library: Loaded) -> std::result::Result<Api, String> {
        let text = |error: libloading::Error| error.to_string();
        // SAFETY: the types are those of cublasLt.h, which every version since 11.4 has.
        unsafe {
            Ok(Api {
                get_version: *library.get(b"cublasLtGetVersion\0").map_err(text)?,
                status_name: *library.get(b"cublasLtGetStatusName\0").map_err(text)?,
                status_string: *library.get(b"cublasLtGetStatusString\0").map_err(text)?,
                create: *library.get(b"cublasLtCreate\0").map_err(text)?,
                destroy: *library.get(b"cublasLtDestroy\0").map_err(text)?,
                desc_create: *library.get(b"cublasLtMatmulDescCreate\0").map_err(text)?,
                desc_destroy: *library.get(b"cublasLtMatmulDescDestroy\0").map_err(text)?,
                desc_set: *library.get(b"cublasLtMatmulDescSetAttribute\0").map_err(text)?,
                layout_create: *library.get(b"cublasLtMatrixLayoutCreate\0").map_err(text)?,
                layout_destroy: *library.get(b"cublasLtMatrixLayoutDestroy\0").map_err(text)?,
                layout_set: *library.get(b"cublasLtMatrixLayoutSetAttribute\0").map_err(text)?,
                preference_create: *library.get(b"cublasLtMatmulPreferenceCreate\0").map_err(text)?,
                preference_destroy: *library.get(b"cublasLtMatmulPreferenceDestroy\0").map_err(text)?,
                preference_set: *library.get(b"cublasLtMatmulPreferenceSetAttribute\0").map_err(text)?,
                heuristic: *library.get(b"cublasLtMatmulAlgoGetHeuristic\0").map_err(text)?,
                matmul: *library.get(b"cublasLtMatmul\0").map_err(text)?,
                _library: ManuallyDrop::new(library),
            })
        }
    }

    /// Its version, such as `13.1.0`.
    pub(super) fn version(&self) -> String {
        // SAFETY: no condition.
        let version = unsafe { (self.get_version)() };
        format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
    }

    /// An error where the status is none of success.
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let text = |function: unsafe extern "C" fn(Status) -> *const c_char| {
            // SAFETY: the function takes any number.
            let text = unsafe { function(status) };
            if text.is_null() {
                return format!("status {status}");
            }
            // SAFETY: strings of the library end with zero and live forever.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        let (name, said) = (text(self.status_name), text(self.status_string));
        Err(Error::Blas { call, version: self.version(), status: name, text: said })
    }
}

/// Something that the library made, which ends with its own function.
pub(super) struct Owned {
    pub(super) handle: Handle,
    destroy: Destroy,
}

// SAFETY: descriptors are plain memory of the library, without a thread of their own; whoever changes one has it alone.
unsafe impl Send for Owned {}

impl Owned {
    pub(super) fn new(handle: Handle, destroy: Destroy) -> Owned {
        Owned { handle, destroy }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made once, ended once. A failure leaves nothing to do.
        unsafe { (self.destroy)(self.handle) };
    }
}
