//! The host side over fake libraries: machines with three GPUs, of which each test has its own.

mod blas;
mod cudnn;
mod driver;
mod errors;
mod launches;
mod libraries;
mod limits;
mod modules;
mod nccl;
mod order;
mod probe;
mod ranks;
mod training;
mod tuned;

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::fs;
use std::mem::ManuallyDrop;
use std::process::{Command, Output};

use libloading::Library as Loaded;
use oarlock_cuda::cache::Cache;
use oarlock_cuda::driver::{Arg, Context, DeviceMemory, Driver, Stream};
use oarlock_cuda::libraries::Libraries;
use oarlock_cuda::modules::Modules;
use tempfile::TempDir;

use crate::emulator::{FAKES, fakes};
use crate::numbers::Plain;

/// A machine: copies of the fake libraries, which the loader takes for others than those of other tests.
pub struct Machine {
    folder: TempDir,
    libraries: [ManuallyDrop<Loaded>; 5],
    expects_leaks: bool,
}

/// Where a process that a test starts has its folders, which the test removes.
const PLACE: &str = "OARLOCK_TEST_PLACE";

const FILES: [&str; 5] =
    ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13", "libnccl.so.2", "libcudnn.so.9"];

impl Machine {
    /// None where there is no C++ compiler.
    pub fn new() -> Option<Machine> {
        let place = std::env::var_os(PLACE).unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
        let folder = tempfile::tempdir_in(place).expect("a temporary folder");
        let fakes = fakes()?;
        let libraries = FILES.map(|name| {
            let file = folder.path().join(name);
            fs::copy(fakes.join(name), &file).expect("a copy");
            // SAFETY: the library is ours, and stays loaded.
            ManuallyDrop::new(unsafe { Loaded::new(&file) }.expect("a library"))
        });
        Some(Machine { folder, libraries, expects_leaks: false })
    }

    /// As the library search takes it.
    pub fn libraries(&self) -> Libraries {
        Libraries::Folder(self.folder.path().into())
    }

    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub fn driver(&self) -> Driver {
        Driver::find(&self.libraries()).expect("a driver")
    }

    pub fn context(&self, device: usize) -> Context {
        self.driver().device(device).expect("a device").context().expect("a context")
    }

    /// Modules that are not kept on disk.
    pub fn modules(&self, context: &Context) -> Modules {
        Modules::new(context, &self.libraries(), Cache::none()).expect("modules")
    }

    /// A call fails once, after as many that do not.
    pub fn fail(&self, call: &str, skip: i32, code: i32) {
        let call = CString::new(call).expect("a name");
        // SAFETY: the type is that of the definition.
        unsafe {
            let fail =
                self.libraries[0].get::<unsafe extern "C" fn(*const c_char, c_int, c_int)>(b"fake_fail\0");
            fail.expect("a function")(call.as_ptr(), skip, code);
        }
    }

    /// What is alive on the GPUs.
    pub fn alive(&self) -> String {
        self.text(b"fake_alive\0")
    }

    /// What the last error of a GPU was.
    pub fn message(&self) -> String {
        self.text(b"fake_message\0")
    }

    fn text(&self, function: &[u8]) -> String {
        // SAFETY: the type is that of the definition; the text lives until the next call of this thread.
        unsafe {
            let text = self.libraries[0].get::<unsafe extern "C" fn() -> *const c_char>(function);
            CStr::from_ptr(text.expect("a function")()).to_string_lossy().into_owned()
        }
    }

    /// A number that a fake library counts.
    pub fn count(&self, library: usize, function: &str) -> i32 {
        let symbol = CString::new(function).expect("a name");
        // SAFETY: the type is that of the definition.
        unsafe {
            let count =
                self.libraries[library].get::<unsafe extern "C" fn() -> c_int>(symbol.as_bytes_with_nul());
            count.expect("a function")()
        }
    }

    /// The next compilations fail at this step; at none of them if it is empty.
    pub fn fail_nvrtc(&self, step: &str) {
        let step = CString::new(step).expect("a name");
        // SAFETY: as above.
        unsafe {
            let fail = self.libraries[1].get::<unsafe extern "C" fn(*const c_char)>(b"fake_nvrtc_fails\0");
            fail.expect("a function")(step.as_ptr());
        }
    }

    /// A GPU becomes one of another model, before it has a context.
    pub fn model(&self, device: i32, name: &str) {
        let symbol = CString::new(name).expect("a name");
        // SAFETY: as above.
        let known = unsafe {
            let model =
                self.libraries[0].get::<unsafe extern "C" fn(c_int, *const c_char) -> c_int>(b"fake_model\0");
            model.expect("a function")(device, symbol.as_ptr())
        };
        assert_eq!(known, 1, "there is no model {name}");
    }

    /// Tells a fake library something that is a number: of CUDA that the driver supports, whether launches are only checked.
    pub fn tell(&self, library: usize, function: &str, number: i32) {
        tell(&self.libraries[library], function, number);
    }

    /// The address of a function of the driver, which is called as its header declares it.
    pub fn function<T: Copy>(&self, name: &str) -> T {
        let symbol = CString::new(name).expect("a name");
        // SAFETY: the caller's type is that of the header.
        unsafe { *self.libraries[0].get::<T>(symbol.as_bytes_with_nul()).expect("a function") }
    }

    /// A copy of one of its libraries under another name, which is another library to the loader.
    pub fn copy(&self, library: usize, name: &str) -> ManuallyDrop<Loaded> {
        let file = self.folder.path().join(name);
        fs::copy(self.folder.path().join(FILES[library]), &file).expect("a copy");
        // SAFETY: the library is ours, and stays loaded.
        ManuallyDrop::new(unsafe { Loaded::new(&file) }.expect("a library"))
    }

    /// Ends the context of a GPU, as something else in the process may.
    pub fn reset(&self, device: i32) {
        // SAFETY: as above.
        unsafe {
            let reset = self.libraries[0]
                .get::<unsafe extern "C" fn(c_int) -> c_int>(b"cuDevicePrimaryCtxReset_v2\0");
            assert_eq!(reset.expect("a function")(device + 40), 0);
        }
    }

    /// Fills memory of the current context by an address that nobody checks before; what the driver says.
    pub fn fill(&self, address: u64, bytes: usize) -> i32 {
        type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
        type Fill = unsafe extern "C" fn(u64, u8, usize, *mut c_void) -> c_int;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the types are those of cuda.h; the fake driver checks the address.
        unsafe {
            let create = self.libraries[0].get::<Create>(b"cuStreamCreate\0").expect("a function");
            let fill = self.libraries[0].get::<Fill>(b"cuMemsetD8Async\0").expect("a function");
            let destroy =
                self.libraries[0].get::<unsafe extern "C" fn(*mut c_void) -> c_int>(b"cuStreamDestroy_v2\0");
            assert_eq!(create(&mut stream, 1), 0);
            let code = fill(address, 0, bytes, stream);
            assert_eq!(destroy.expect("a function")(stream), 0);
            code
        }
    }

    /// What is planned to go wrong leaves something behind.
    pub fn expect_leaks(&mut self) {
        self.expects_leaks = true;
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.expects_leaks || std::thread::panicking() {
            return;
        }
        assert_eq!(self.alive(), "", "something was not freed");
        assert_eq!(self.count(1, "fake_programs"), 0, "a program was not freed");
        assert_eq!(self.count(2, "fake_blas_alive"), 0, "a descriptor was not freed");
        assert_eq!(self.count(3, "fake_nccl_alive"), 0, "a communicator has not ended");
        assert_eq!(self.count(4, "fake_cudnn_alive"), 0, "a descriptor of cuDNN was not freed");
    }
}

/// Calls a function of a fake library that takes a number.
pub fn tell(library: &Loaded, function: &str, number: i32) {
    let symbol = CString::new(function).expect("a name");
    // SAFETY: the type is that of the definition.
    unsafe {
        let tell = library.get::<unsafe extern "C" fn(c_int)>(symbol.as_bytes_with_nul());
        tell.expect("a function")(number);
    }
}

/// The bytes of elements.
pub fn bytes_of<T: Plain>(elements: &[T]) -> &[u8] {
    // SAFETY: plain numbers have no padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// Memory with these elements.
pub fn upload<T: Plain>(stream: &Stream, elements: &[T]) -> DeviceMemory {
    let memory = stream.context().alloc(size_of_val(elements)).expect("memory");
    stream.write_now(bytes_of(elements), memory.all()).expect("a copy");
    memory
}

/// Memory in which nothing was written yet.
pub fn fresh<T: Plain>(stream: &Stream, n: usize) -> DeviceMemory {
    stream.context().alloc(n * size_of::<T>()).expect("memory")
}

/// What memory holds, when the stream has done its work.
pub fn download<T: Plain>(stream: &Stream, memory: &DeviceMemory) -> Vec<T> {
    let mut bytes = vec![0; memory.bytes()];
    stream.read_now(memory.all(), &mut bytes).expect("a copy");
    elements(&bytes)
}

/// Bytes as elements.
pub fn elements<T: Plain>(bytes: &[u8]) -> Vec<T> {
    // SAFETY: plain numbers may have any bits; the read does not need alignment.
    bytes
        .chunks_exact(size_of::<T>())
        .map(|bytes| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
        .collect()
}

/// All of the memory as an argument.
pub fn arg<T: Plain>(memory: &DeviceMemory) -> Arg<'_> {
    Arg::memory(T::ELEMENT, memory.all())
}

/// Runs one test of this program in a process of its own, with a variable.
pub fn again(test: &str, variable: &str, value: impl AsRef<OsStr>) -> Output {
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.args(["--exact", test]).env(variable, value);
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    again.env(FAKES, fakes().expect("fake libraries")).env(PLACE, place.path());
    again.output().expect("a process")
}
