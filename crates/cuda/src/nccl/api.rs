//! The functions of libnccl, as `nccl.h` of NCCL 2.30.7 declares them.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::error::NcclError;
pub(super) use crate::binding::call;
use crate::binding::{binding, string};
use crate::driver::api::Handle as Stream;
use crate::error::Result;

/// `ncclResult_t`; 0 is success.
pub(super) type Code = c_int;
/// `ncclComm_t`.
pub(super) type Handle = *mut c_void;
/// `ncclInProgress`: a nonblocking communicator still works on what it was asked for.
pub(super) const IN_PROGRESS: Code = 7;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Id(pub(super) [u8; 128]);

/// `ncclConfig_t` as it was in NCCL 2.14, the first with nonblocking communicators. It says its own length and version, and
/// later libraries take what it lacks as undefined.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    /// Calls return at once.
    pub(super) fn nonblocking() -> Config {
        Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21_400, blocking: 0 }
    }
}

binding! { Nccl;
    -> Code {
        get_version: "ncclGetVersion" (*mut c_int);
        unique_id: "ncclGetUniqueId" (*mut Id);
        init: "ncclCommInitRankConfig" (*mut Handle, c_int, Id, c_int, *mut Config);
        count: "ncclCommCount" (Handle, *mut c_int);
        user_rank: "ncclCommUserRank" (Handle, *mut c_int);
        async_error: "ncclCommGetAsyncError" (Handle, *mut Code);
        finalize: "ncclCommFinalize" (Handle);
        destroy: "ncclCommDestroy" (Handle);
        abort: "ncclCommAbort" (Handle);
        group_start: "ncclGroupStart" ();
        group_end: "ncclGroupEnd" ();
        all_reduce: "ncclAllReduce" (u64, u64, usize, c_int, c_int, Handle, Stream);
        reduce_scatter: "ncclReduceScatter" (u64, u64, usize, c_int, c_int, Handle, Stream);
        all_gather: "ncclAllGather" (u64, u64, usize, c_int, Handle, Stream);
        broadcast: "ncclBroadcast" (u64, u64, usize, c_int, c_int, Handle, Stream);
        reduce: "ncclReduce" (u64, u64, usize, c_int, c_int, c_int, Handle, Stream);
        send: "ncclSend" (u64, usize, c_int, c_int, Handle, Stream);
        recv: "ncclRecv" (u64, usize, c_int, c_int, Handle, Stream);
    }
    -> *const c_char {
        error_string: "ncclGetErrorString" (Code);
        last_error: "ncclGetLastError" (Handle);
    }
    // Not in libraries before 2.18.
    optional -> Code {
        split: "ncclCommSplit" (Handle, c_int, c_int, *mut Handle, *mut Config);
    }
}

impl Api {
    /// Its version, such as `2.30.7`.
    pub(super) fn version(&self) -> Result<String> {
        let mut version = 0;
        // SAFETY: the pointer is valid for the call.
        let (name, code) = unsafe { call!(self, get_version(&mut version)) };
        self.check(name, code)?;
        // The form of all versions since 2.9.
        Ok(format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100))
    }

    /// An error where the result is none of success.
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code).into()) }
    }

    /// As [`Api::check`], for a call that ends a communicator: a nonblocking one may end later, by itself. Nobody can ask
    /// for its progress, since its handle is not to be used any more.
    pub(super) fn check_begun(&self, call: &'static str, code: Code) -> Result<()> {
        if code == IN_PROGRESS { Ok(()) } else { self.check(call, code) }
    }

    /// The error of a call that did not succeed.
    pub(super) fn error(&self, call: &'static str, code: Code) -> NcclError {
        // SAFETY: the function takes any number, and its strings live forever.
        let text = unsafe { string((self.error_string.call)(code)) }.unwrap_or_default();
        // SAFETY: no communicator is needed. The string lives until a later call of this thread.
        let detail = unsafe { string((self.last_error.call)(std::ptr::null_mut())) }.unwrap_or_default();
        let detail = detail.trim().to_string();
        NcclError { call, code, text, detail }
    }
}
