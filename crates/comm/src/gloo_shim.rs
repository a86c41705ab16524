//! The shim over Gloo: a shared library that this program carries, where it was built with Gloo, and loads when it is first asked
//! for. What it needs of the machine, Gloo above all, is needed then and not before.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::MemfdFlags;

/// The bytes of the shim, or why the build made none.
static BUILT: Result<&[u8], &str> = include!(concat!(env!("OUT_DIR"), "/shim.rs"));

/// The variable that leaves Gloo out: of a build, and of a program that has it.
const SWITCH: &str = "OARLOCK_GLOO";

/// A call of the shim that seals or opens a record.
pub(crate) type RecordCall = unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> c_int;

/// Declares the functions of the shim, whose types are those of `gloo/shim/shim.cc`.
macro_rules! functions {
    ($($field:ident: $symbol:literal ($($arg:ty),* $(,)?) $(-> $result:ty)?;)+) => {
        /// The functions of the shim.
        pub(crate) struct Shim {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)+
            /// Never unloaded: Gloo has threads of its own.
            _library: ManuallyDrop<Library>,
        }

        impl Shim {
            fn of(library: Library) -> Result<Shim, libloading::Error> {
                // SAFETY: the types are those of the shim's source, which is compiled with this file.
                unsafe {
                    Ok(Shim {
                        $($field: *library.get(concat!($symbol, "\0").as_bytes())?,)+
                        _library: ManuallyDrop::new(library),
                    })
                }
            }
        }
    };
}

functions! {
    open: "oarlock_gloo_open" (
        c_int, c_int, *const c_int, *const *mut c_void, RecordCall, RecordCall, *const c_char, *mut c_char, usize
    ) -> *mut c_void;
    begin: "oarlock_gloo_begin" (
        *mut c_void, c_int, c_int, u64, *mut c_void, usize, *mut c_char, usize
    ) -> *mut c_void;
    poll: "oarlock_gloo_poll" (*mut c_void, *mut c_char, usize) -> c_int;
    wait: "oarlock_gloo_wait" (*mut c_void, u64);
    free: "oarlock_gloo_free" (*mut c_void);
    half_close: "oarlock_gloo_half_close" (*mut c_void, c_int);
}

/// Why Gloo cannot be had, and the command that brings it.
pub(crate) fn obstacle() -> Option<&'static str> {
    shim().err()
}

/// The shim, loaded once; why it cannot be had, and the command that brings it.
pub(crate) fn shim() -> Result<&'static Shim, &'static str> {
    static LOADED: OnceLock<Result<Shim, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| match (std::env::var(SWITCH).as_deref(), BUILT) {
        (Ok("off"), _) => Err(format!("{SWITCH}=off leaves it out; unset {SWITCH}")),
        (_, Err(why)) => Err(format!(
            "this program was built without Gloo, as {why}, and build it again"
        )),
        (_, Ok(bytes)) => load(bytes).map_err(|why| {
            format!("the library that this program was built with cannot be loaded ({why}): `apt-get install libgloo-dev`")
        }),
    });
    loaded.as_ref().map_err(String::as_str)
}

fn load(bytes: &[u8]) -> Result<Shim, String> {
    let file = rustix::fs::memfd_create("oarlock-gloo", MemfdFlags::CLOEXEC);
    let mut file = File::from(file.map_err(|error| error.to_string())?);
    file.write_all(bytes).map_err(|error| error.to_string())?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the shim and Gloo do nothing at their start but what the standard library of C++ does.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    library.and_then(Shim::of).map_err(|error| error.to_string())
}
