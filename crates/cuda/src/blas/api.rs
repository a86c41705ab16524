//! The functions of libcublasLt, as `cublasLt.h` declares them, and what they make.

use std::ffi::{c_char, c_int, c_void};

pub(super) use crate::binding::call;
use crate::binding::{Function, binding, string};
use crate::error::{Error, Result};
use crate::libraries::Cuda;

/// `cublasStatus_t`; 0 is success.
pub(super) type Status = c_int;
/// The library's handle, and its descriptors.
pub(super) type Handle = *mut c_void;
/// `CUBLAS_STATUS_INVALID_VALUE`.
pub(super) const INVALID_VALUE: Status = 7;
/// `CUBLAS_STATUS_ARCH_MISMATCH`.
pub(super) const ARCH_MISMATCH: Status = 8;
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
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub(super) algo: Algo,
    pub(super) workspace_bytes: usize,
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

/// What ends something that the library made.
pub(super) type Destroy = unsafe extern "C" fn(Handle) -> Status;
/// A function that names a status.
type Strings = Function<unsafe extern "C" fn(Status) -> *const c_char>;

binding! { CublasLt;
    -> Status {
        create: "cublasLtCreate" (*mut Handle);
        destroy: "cublasLtDestroy" (Handle);
        desc_create: "cublasLtMatmulDescCreate" (*mut Handle, c_int, c_int);
        desc_destroy: "cublasLtMatmulDescDestroy" (Handle);
        desc_set: "cublasLtMatmulDescSetAttribute" (Handle, c_int, *const c_void, usize);
        layout_create: "cublasLtMatrixLayoutCreate" (*mut Handle, c_int, u64, u64, i64);
        layout_destroy: "cublasLtMatrixLayoutDestroy" (Handle);
        layout_set: "cublasLtMatrixLayoutSetAttribute" (Handle, c_int, *const c_void, usize);
        preference_create: "cublasLtMatmulPreferenceCreate" (*mut Handle);
        preference_destroy: "cublasLtMatmulPreferenceDestroy" (Handle);
        preference_set: "cublasLtMatmulPreferenceSetAttribute" (Handle, c_int, *const c_void, usize);
        heuristic: "cublasLtMatmulAlgoGetHeuristic" (Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int,
            *mut Choice, *mut c_int);
        algo_init: "cublasLtMatmulAlgoInit" (Handle, c_int, c_int, c_int, c_int, c_int, c_int, c_int, *mut Algo);
        algo_check: "cublasLtMatmulAlgoCheck" (Handle, Handle, Handle, Handle, Handle, Handle, *const Algo, *mut Choice);
        config_get: "cublasLtMatmulAlgoConfigGetAttribute" (*const Algo, c_int, *mut c_void, usize, *mut usize);
        config_set: "cublasLtMatmulAlgoConfigSetAttribute" (*mut Algo, c_int, *const c_void, usize);
        matmul: "cublasLtMatmul" (Handle, Handle, *const c_void, u64, Handle, u64, Handle, *const c_void, u64, Handle,
            u64, Handle, *const Algo, u64, usize, Handle);
    }
    -> usize {
        get_version: "cublasLtGetVersion" ();
    }
    -> *const c_char {
        status_name: "cublasLtGetStatusName" (Status);
        status_string: "cublasLtGetStatusString" (Status);
    }
}

impl Api {
    /// Its version, such as `13.1.0`.
    pub(super) fn version(&self) -> String {
        let version = self.number();
        format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
    }

    /// The version of CUDA that it belongs to.
    pub(super) fn cuda(&self) -> Cuda {
        let part = |part: usize| u32::try_from(part).unwrap_or(u32::MAX);
        (part(self.number() / 10_000), part(self.number() % 10_000 / 100))
    }

    fn number(&self) -> usize {
        // SAFETY: no condition.
        unsafe { (self.get_version.call)() }
    }

    /// An error where the status is none of success.
    pub(super) fn check(&self, (call, status): (&'static str, Status)) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let text = |function: &Strings| {
            // SAFETY: the function takes any number, and its strings live forever.
            unsafe { string((function.call)(status)) }.unwrap_or_else(|| format!("status {status}"))
        };
        let (name, said) = (text(&self.status_name), text(&self.status_string));
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
    pub(super) fn new(handle: Handle, destroy: &Function<Destroy>) -> Owned {
        Owned { handle, destroy: destroy.call }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made once, ended once. A failure leaves nothing to do.
        unsafe { (self.destroy)(self.handle) };
    }
}
