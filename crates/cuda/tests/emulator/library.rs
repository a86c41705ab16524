//! A library of kernels in the emulator: the loaded file, and its functions.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use oarlock_cuda::geometry::Geometry;
use oarlock_cuda::source::{HEADERS, Unit};
use oarlock_cuda::table;

use oarlock_fakes::{Changed, Sanitizer, Workshop, compiler, has_tile, tiled_units};

type LaunchFn = unsafe extern "C" fn(
    *const c_char,
    *const c_uint,
    c_uint,
    usize,
    *const *const c_void,
    usize,
    c_uint,
    c_uint,
    *mut c_char,
    usize,
) -> c_int;
type Alloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Data = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
type Signature = unsafe extern "C" fn(*const c_char) -> *const c_char;
type TilesFn = unsafe extern "C" fn(*mut u64);
type KernelName = unsafe extern "C" fn(usize) -> *const c_char;

/// A loaded library. It stays loaded until the process ends.
pub struct Library {
    launch: LaunchFn,
    alloc: Alloc,
    data: Data,
    free: Free,
    signature: Signature,
    kernel_name: KernelName,
    tiles: TilesFn,
}

/// Device memory.
pub struct Memory {
    handle: *mut c_void,
    data: *mut c_void,
    free: Free,
}

impl Memory {
    pub fn data(&self) -> *mut c_void {
        self.data
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the handle is that of memory of this library, and is freed once.
        let intact = unsafe { (self.free)(self.handle) } != 0;
        assert!(intact || std::thread::panicking(), "a kernel wrote beside a buffer");
    }
}

/// The units that are run: all but those of attention, which are many, and of which these are enough for every branch.
pub fn emulated_units() -> Vec<Unit> {
    const OF_ATTENTION: [(&str, &str); 7] = [
        ("bf16", "32"),
        ("bf16", "64"),
        ("bf16", "128"),
        ("bf16", "256"),
        ("f16", "96"),
        ("f16", "192"),
        ("f32", "128"),
    ];
    let is_run = |unit: &Unit| match &unit.defines[..] {
        [] => true,
        [(_, element), (_, head_dim), ..] => OF_ATTENTION.contains(&(element, head_dim)),
        _ => false,
    };
    // One tile of each size, one through the scratch memory of f32, one of a single warp, and those of warpgroups for heads whose
    // rows are half a column, one column, one and a half, two and four.
    const TILES: [(&str, &str, &str); 9] = [
        ("bf16", "32", "128x32"),
        ("bf16", "32", "64x128"),
        ("f32", "128", "128x16"),
        ("f32", "128", "16x16"),
        ("bf16", "32", "64x16-wgmma"),
        ("bf16", "64", "128x64-wgmma"),
        ("f16", "96", "128x32-wgmma"),
        ("bf16", "128", "64x64-wgmma"),
        ("bf16", "256", "64x16-wgmma"),
    ];
    let tiled = tiled_units().into_iter().filter(|unit| has_tile(unit, &TILES));
    table::units().into_iter().filter(is_run).chain(tiled).collect()
}

/// The folder of the fake libraries that a test gives to a process that it starts.
pub const FAKES: &str = "OARLOCK_TEST_FAKES";

/// The folder of the fake libraries of CUDA, made once; none where there is no C++ compiler.
pub fn fakes() -> Option<&'static std::path::Path> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        if let Some(folder) = std::env::var_os(FAKES) {
            return Some(folder.into());
        }
        let base = base()?;
        let is_used = |unit: &Unit| {
            let files = [
                "copy.cu",
                "elementwise.cu",
                "gemm.cu",
                "norm.cu",
                "optim.cu",
                "probe.cu",
                "order.cu",
                "attention_forward.cu",
                "attention_backward.cu",
            ];
            files.contains(&unit.source.file)
        };
        let kernels: Vec<PathBuf> =
            base.kernels.iter().filter(|(unit, _)| is_used(unit)).map(|(_, object)| object.clone()).collect();
        let folder = base.workshop.fakes(&kernels, &base.emulator);
        Some(folder.unwrap_or_else(|error| panic!("{error}")))
    });
    if made.is_none() {
        // Each test that finds none says so.
        compiler()?;
    }
    made.as_deref()
}

/// What is compiled once for all libraries: a folder to work in, and the emulator's object files.
struct Base {
    workshop: Workshop,
    emulator: Vec<PathBuf>,
    kernels: Vec<(Unit, PathBuf)>,
    library: Library,
}

/// Compiles the emulator and all kernels that are run, once; none where there is no C++ compiler.
fn base() -> Option<&'static Base> {
    static BASE: OnceLock<Option<Result<Base, String>>> = OnceLock::new();
    let made = BASE
        .get_or_init(|| Some(Base::new(Workshop::new(env!("CARGO_TARGET_TMPDIR").as_ref(), compiler()?))));
    if made.is_none() {
        // Each test that finds none says so.
        compiler()?;
    }
    made.as_ref().map(|base| base.as_ref().unwrap_or_else(|error| panic!("{error}")))
}

impl Base {
    fn new(workshop: Workshop) -> Result<Base, String> {
        let emulator = workshop.emulator()?;
        let units = emulated_units();
        let objects = workshop.kernels("kernels", &units, &[], Sanitizer::None)?;
        let library = Library::load(&workshop.link("kernels.so", &[&objects[..], &emulator].concat())?)?;
        Ok(Base { workshop, emulator, kernels: units.into_iter().zip(objects).collect(), library })
    }
}

impl Library {
    /// The library of all kernels that are run; none where there is no C++ compiler.
    pub fn of_all_kernels() -> Option<&'static Library> {
        base().map(|base| &base.library)
    }

    /// A library of some units where some files are changed; none where there is no C++ compiler.
    pub fn of_changed(label: &str, units: &[Unit], changed: &[Changed]) -> Option<Result<Library, String>> {
        let base = base()?;
        let is_header = |change: &Changed| HEADERS.iter().any(|header| header.file == change.file);
        let concerns =
            |unit: &&Unit| changed.iter().any(|change| change.file == unit.source.file || is_header(change));
        let (concerned, others): (Vec<&Unit>, Vec<&Unit>) = units.iter().partition(concerns);
        let concerned: Vec<Unit> = concerned.into_iter().cloned().collect();
        let objects = base.workshop.kernels(label, &concerned, changed, Sanitizer::None);
        Some(objects.and_then(|mut objects| {
            let known = base.kernels.iter().filter(|(unit, _)| others.contains(&unit));
            objects.extend(known.map(|(_, object)| object.clone()));
            objects.extend(base.emulator.iter().cloned());
            Library::load(&base.workshop.link(&format!("{label}.so"), &objects)?)
        }))
    }

    /// A library of one family, with the accesses of its kernels watched by a sanitizer. The process must have the
    /// sanitizer's runtime loaded from its beginning.
    pub fn of_watched(
        units: &[Unit],
        changed: &[Changed],
        sanitizer: Sanitizer,
    ) -> Option<Result<Library, String>> {
        let workshop = Workshop::new(env!("CARGO_TARGET_TMPDIR").as_ref(), compiler()?);
        let build = || {
            let mut objects = workshop.kernels("watched", units, changed, sanitizer)?;
            objects.extend(workshop.emulator()?);
            Library::load(&workshop.link("watched.so", &objects)?)
        };
        Some(build())
    }

    /// The file of a sanitizer's runtime; none where the compiler has none.
    pub fn runtime(sanitizer: Sanitizer) -> Option<PathBuf> {
        let name = format!("-print-file-name={}", sanitizer.runtime());
        let output = std::process::Command::new(compiler()?).arg(name).output().ok()?;
        let file = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        file.is_absolute().then_some(file)
    }

    fn load(file: &std::path::Path) -> Result<Library, String> {
        let text = |error: libloading::Error| error.to_string();
        // SAFETY: the library is ours; its initialization fills a table.
        let library = unsafe { libloading::Library::new(file) }.map_err(text)?;
        // SAFETY: the types are those of the definitions in emulator/*.cpp.
        let loaded = unsafe {
            Library {
                launch: *library.get(b"emulator_launch\0").map_err(text)?,
                alloc: *library.get(b"emulator_alloc\0").map_err(text)?,
                data: *library.get(b"emulator_data\0").map_err(text)?,
                free: *library.get(b"emulator_free\0").map_err(text)?,
                signature: *library.get(b"emulator_signature\0").map_err(text)?,
                kernel_name: *library.get(b"emulator_kernel\0").map_err(text)?,
                tiles: *library.get(b"emulator_tiles\0").map_err(text)?,
            }
        };
        // Its functions and its signal handler are used until the end.
        std::mem::forget(library);
        Ok(loaded)
    }

    /// Device memory of a size, in which every float is NaN.
    pub fn memory(&self, bytes: usize) -> Memory {
        // SAFETY: any size is valid; the alignment is a power of two below that of a page.
        let handle = unsafe { (self.alloc)(bytes, 16) };
        // SAFETY: the handle was just made.
        Memory { handle, data: unsafe { (self.data)(handle) }, free: self.free }
    }

    /// Runs a kernel, with the words of its arguments.
    pub fn launch(
        &self,
        name: &str,
        geometry: Geometry,
        args: &[&[u64]],
        n_workers: u32,
        order: u32,
    ) -> Result<(), String> {
        let symbol = CString::new(name).expect("a name without zeros");
        let pointers: Vec<*const c_void> = args.iter().map(|arg| arg.as_ptr().cast()).collect();
        let mut error = [0 as c_char; 2048];
        // SAFETY: each argument has the size of its parameter, which the table says and a test compares; the emulator checks
        // their number.
        let failed = unsafe {
            (self.launch)(
                symbol.as_ptr(),
                geometry.grid.as_ptr(),
                geometry.threads,
                geometry.shared_bytes,
                pointers.as_ptr(),
                pointers.len(),
                n_workers,
                order,
                error.as_mut_ptr(),
                error.len(),
            )
        } != 0;
        // SAFETY: the emulator wrote a string that ends inside of `error`.
        let text = || unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy().into_owned();
        if failed { Err(text()) } else { Ok(()) }
    }

    /// The tiles of scores that the last launch of this thread computed, and those whose masks it looked at.
    pub fn tiles(&self) -> [u64; 2] {
        let mut tiles = [0; 2];
        // SAFETY: it writes two numbers.
        unsafe { (self.tiles)(tiles.as_mut_ptr()) };
        tiles
    }

    /// The parameters of a kernel as C declares them.
    pub fn signature(&self, name: &str) -> Option<String> {
        let name = CString::new(name).expect("a name without zeros");
        // SAFETY: the name is a string.
        string(unsafe { (self.signature)(name.as_ptr()) })
    }

    /// The names of all kernels.
    pub fn kernels(&self) -> Vec<String> {
        // SAFETY: any index is valid.
        (0..).map_while(|i| string(unsafe { (self.kernel_name)(i) })).collect()
    }
}

/// A string that the library keeps; none for null.
fn string(text: *const c_char) -> Option<String> {
    // SAFETY: strings of the library end with zero, and live as long as it does.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
