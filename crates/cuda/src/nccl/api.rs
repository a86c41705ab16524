//! The functions of libnccl, as `nccl.h` of NCCL 2.30.7 declares them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::os::unix::{Library as Loaded, RTLD_NOW};

use super::error::NcclError;
use crate::driver::api::Handle as Stream;
use crate::error::{Error, Result};
use crate::libraries::Library;

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

/// Declares the table: `field: "symbol" (types);`, all of which return an `ncclResult_t`.
macro_rules! functions {
    ($($field:ident: $symbol:literal ($($arg:ty),*);)+) => {
        /// The functions that are used. Device pointers are declared as the numbers that they are on the host.
        pub(super) struct Api {
            $(pub(super) $field: Function<unsafe extern "C" fn($($arg),*) -> Code>,)+
            error_string: unsafe extern "C" fn(Code) -> *const c_char,
            last_error: unsafe extern "C" fn(Handle) -> *const c_char,
            /// Not in libraries before 2.18.
            pub(super) split: Option<Function<Split>>,
            /// Never unloaded: it has threads of its own in the process.
            _library: ManuallyDrop<Loaded>,
        }

        impl Api {
            fn resolve(library: Loaded) -> std::result::Result<Api, String> {
                let text = |error: libloading::Error| error.to_string();
                // SAFETY: the types are those of nccl.h, which every version since 2.14 has.
                unsafe {
                    Ok(Api {
                        $($field: Function {
                            name: $symbol,
                            call: *library.get(concat!($symbol, "\0").as_bytes()).map_err(text)?,
                        },)+
                        error_string: *library.get(b"ncclGetErrorString\0").map_err(text)?,
                        last_error: *library.get(b"ncclGetLastError\0").map_err(text)?,
                        split: library.get::<Split>(b"ncclCommSplit\0").ok().map(|split| Function {
                            name: "ncclCommSplit",
                            call: *split,
                        }),
                        _library: ManuallyDrop::new(library),
                    })
                }
            }
        }
    };
}

/// A function and its name.
pub(super) struct Function<F> {
    pub(super) name: &'static str,
    pub(super) call: F,
}

type Split = unsafe extern "C" fn(Handle, c_int, c_int, *mut Handle, *mut Config) -> Code;

functions! {
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
    send: "ncclSend" (u64, usize, c_int, c_int, Handle, Stream);
    recv: "ncclRecv" (u64, usize, c_int, c_int, Handle, Stream);
}

/// Calls a function of the table with the arguments of its type: its name and its result. Whoever uses it says why they are
/// valid.
macro_rules! call {
    ($api:expr, $field:ident($($arg:expr),* $(,)?)) => {{
        let function = &$api.$field;
        (function.name, (function.call)($($arg),*))
    }};
}
pub(super) use call;

impl Api {
    /// Loads a file and finds its functions.
    pub(super) fn load(file: &Path) -> Result<Api> {
        // SAFETY: the library's initialization has no conditions.
        let loaded = unsafe { Loaded::open(Some(file), RTLD_NOW) }.map_err(|error| error.to_string());
        loaded.and_then(Api::resolve).map_err(|reason| Error::Unusable {
            library: Library::Nccl,
            file: file.into(),
            reason,
        })
    }

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

    /// The error of a call that did not succeed.
    pub(super) fn error(&self, call: &'static str, code: Code) -> NcclError {
        let owned = |text: *const c_char| {
            // SAFETY: strings of the library end with zero, and live until a later call of this thread at least.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        // SAFETY: the function takes any number.
        let text = owned(unsafe { (self.error_string)(code) }).unwrap_or_default();
        // SAFETY: no communicator is needed.
        let detail = owned(unsafe { (self.last_error)(std::ptr::null_mut()) }).unwrap_or_default();
        let detail = detail.trim().to_string();
        NcclError { call, code, text, detail }
    }
}
