//! Compiles the CUDA kernels for the emulator, and fake libraries of CUDA over it, with g++. Only tests use it.
//!
//! The sources are in `crates/cuda`: the kernels, the emulator and the fakes.

use std::ffi::{OsString, c_int};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use oarlock_cuda::attention::{WGMMA_ARCH, tiled_instances};
use oarlock_cuda::source::{HEADERS, Unit};
use tempfile::TempDir;

/// The files of the emulator.
const EMULATOR: [(&str, &str); 5] = [
    ("emulator.h", include_str!("../../cuda/emulator/emulator.h")),
    ("fiber.h", include_str!("../../cuda/emulator/fiber.h")),
    ("machine.h", include_str!("../../cuda/emulator/machine.h")),
    ("machine.cpp", include_str!("../../cuda/emulator/machine.cpp")),
    ("memory.cpp", include_str!("../../cuda/emulator/memory.cpp")),
];
const LAUNCH: (&str, &str) = ("launch.cpp", include_str!("../../cuda/emulator/launch.cpp"));

/// The files of the fake libraries.
const FAKES: [(&str, &str); 12] = [
    ("state.h", include_str!("../../cuda/fakes/state.h")),
    ("state.cpp", include_str!("../../cuda/fakes/state.cpp")),
    ("driver.cpp", include_str!("../../cuda/fakes/driver.cpp")),
    ("static_shared.h", include_str!("../../cuda/fakes/static_shared.h")),
    ("modules.cpp", include_str!("../../cuda/fakes/modules.cpp")),
    ("nvrtc.cpp", include_str!("../../cuda/fakes/nvrtc.cpp")),
    ("cublaslt.cpp", include_str!("../../cuda/fakes/cublaslt.cpp")),
    ("cudnn.cpp", include_str!("../../cuda/fakes/cudnn.cpp")),
    ("segment.h", include_str!("../../cuda/fakes/segment.h")),
    ("nccl.h", include_str!("../../cuda/fakes/nccl.h")),
    ("collectives.cpp", include_str!("../../cuda/fakes/collectives.cpp")),
    ("nccl.cpp", include_str!("../../cuda/fakes/nccl.cpp")),
];

/// A source or header with another text than its own.
#[derive(Clone)]
pub struct Changed {
    /// Its name.
    pub file: String,
    /// What it holds instead.
    pub text: String,
}

/// What watches the accesses of kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sanitizer {
    /// Nothing.
    None,
    /// ThreadSanitizer.
    Thread,
    /// AddressSanitizer.
    Address,
}

impl Sanitizer {
    /// The file name of its runtime.
    pub fn runtime(self) -> &'static str {
        match self {
            Sanitizer::None => "",
            Sanitizer::Thread => "libtsan.so",
            Sanitizer::Address => "libasan.so",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Sanitizer::None => &[],
            Sanitizer::Thread => &["-g", "-fsanitize=thread"],
            Sanitizer::Address => &["-g", "-fsanitize=address"],
        }
    }
}

/// The compiler; none, said aloud, where there is none.
pub fn compiler() -> Option<OsString> {
    let name = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
    let runs = Command::new(&name).arg("--version").output().is_ok_and(|output| output.status.success());
    let why = format!("{} does not run; install g++, or set CXX to another C++20 compiler", name.display());
    oarlock_must::have("g++", runs, &why).then_some(name)
}

/// A folder for what is compiled, which is removed when the process ends.
pub struct Workshop {
    folder: &'static TempDir,
    compiler: OsString,
}

/// Folders to remove.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(vec![]);

extern "C" fn remove_folders() {
    for folder in FOLDERS.lock().into_iter().flat_map(|mut folders| std::mem::take(&mut *folders)) {
        // What is left over is in a folder for temporary files.
        drop(fs::remove_dir_all(folder));
    }
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// A folder that stays until the end: libraries in it are loaded until then.
fn temporary_folder(parent: &Path) -> &'static TempDir {
    let folder = tempfile::tempdir_in(parent).expect("a temporary folder");
    FOLDERS.lock().expect("a list").push(folder.path().into());
    // SAFETY: the function may run at any time, and more than once.
    unsafe { atexit(remove_folders) };
    Box::leak(Box::new(folder))
}

impl Workshop {
    /// A new folder inside of `parent`.
    pub fn new(parent: &Path, compiler: OsString) -> Workshop {
        let folder = temporary_folder(parent);
        for (name, text) in EMULATOR.into_iter().chain([LAUNCH]) {
            fs::write(folder.path().join(name), text).expect("a file of the emulator");
        }
        for header in HEADERS {
            fs::write(folder.path().join(header.file), header.text).expect("a header");
        }
        Workshop { folder, compiler }
    }

    /// The emulator's object files.
    pub fn emulator(&self) -> Result<Vec<PathBuf>, String> {
        let jobs = ["machine.cpp", "memory.cpp", "launch.cpp"].map(|file| {
            let object = self.folder.path().join(format!("{file}.o"));
            (vec!["-O2".into(), self.folder.path().join(file).into()], object)
        });
        self.compile(jobs.into())
    }

    /// A folder with fake libraries of CUDA over the emulator, with these kernels.
    pub fn fakes(&self, kernels: &[PathBuf], emulator: &[PathBuf]) -> Result<PathBuf, String> {
        for (name, text) in FAKES {
            fs::write(self.folder.path().join(name), text).map_err(|error| error.to_string())?;
        }
        let sources = FAKES.iter().map(|(name, _)| *name).filter(|name| name.ends_with(".cpp"));
        let jobs = sources.map(|file| {
            let object = self.folder.path().join(format!("{file}.o"));
            (vec!["-O3".into(), self.folder.path().join(file).into()], object)
        });
        let objects = self.compile(jobs.collect())?;
        let (driver, others) = objects.split_at(3);
        fs::create_dir_all(self.folder.path().join("fakes")).map_err(|error| error.to_string())?;
        self.link("fakes/libcuda.so.1", &[driver, kernels, emulator].concat())?;
        self.link("fakes/libnvrtc.so.13", &others[..1])?;
        self.link("fakes/libcublasLt.so.13", &others[1..2])?;
        self.link("fakes/libcudnn.so.9", &others[2..3])?;
        self.link("fakes/libnccl.so.2", &others[3..])?;
        Ok(self.folder.path().join("fakes"))
    }

    /// The object files of some units, with changed files where there are any. Each `label` has its own folder.
    pub fn kernels(
        &self,
        label: &str,
        units: &[Unit],
        changed: &[Changed],
        sanitizer: Sanitizer,
    ) -> Result<Vec<PathBuf>, String> {
        let folder = self.folder.path().join(label);
        let write =
            |file: &str, text: &str| fs::write(folder.join(file), text).map_err(|error| error.to_string());
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        // Headers find each other in their own folder first, so all of them are in the one with the changes.
        let sources = units.iter().map(|unit| &unit.source);
        HEADERS.iter().chain(sources).try_for_each(|source| write(source.file, source.text))?;
        changed.iter().try_for_each(|change| write(&change.file, &change.text))?;
        let jobs = units.iter().enumerate().map(|(i, unit)| {
            // Tiles of attention are the only loops that are long enough for optimization to pay.
            let level = if unit.defines.is_empty() || !changed.is_empty() { "-O0" } else { "-O1" };
            let mut args: Vec<OsString> = vec![level.into()];
            args.extend(sanitizer.flags().iter().map(OsString::from));
            // A GPU refuses an address that is not a multiple of what its type needs. The emulator says where.
            args.extend(["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"].map(OsString::from));
            // NVRTC fuses products with the sums that follow, whose rounding is then another one. Here that is done for attention,
            // whose differences of large numbers depend on it; the tests of other kernels compare bits with the CPU.
            if !unit.defines.is_empty() && has_fma() {
                args.extend(["-mfma", "-ffp-contract=fast", "-fexpensive-optimizations"].map(OsString::from));
            }
            args.extend(unit.defines.iter().map(|(name, value)| format!("-D{name}={value}").into()));
            args.extend(["-I".into(), folder.clone().into(), "-x".into(), "c++".into()]);
            args.push(folder.join(unit.source.file).into());
            (args, folder.join(format!("{i}.o")))
        });
        self.compile(jobs.collect())
    }

    /// One library of object files.
    pub fn link(&self, name: &str, objects: &[PathBuf]) -> Result<PathBuf, String> {
        let library = self.folder.path().join(name);
        let mut link = Command::new(&self.compiler);
        link.args(["-shared", "-Wl,-z,now", "-pthread", "-o"]).arg(&library).args(objects);
        finish(&mut link)?;
        Ok(library)
    }

    /// Runs compilers, as many as there are cores at a time.
    fn compile(&self, jobs: Vec<(Vec<OsString>, PathBuf)>) -> Result<Vec<PathBuf>, String> {
        let objects = jobs.iter().map(|(_, object)| object.clone()).collect();
        let queue = Mutex::new(jobs.into_iter());
        let n_workers = std::thread::available_parallelism().map_or(1, |n| n.get());
        let worker = || -> Result<(), String> {
            loop {
                let Some((args, object)) = queue.lock().expect("a queue").next() else { return Ok(()) };
                self.compile_one(&args, &object)?;
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..n_workers).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a compiler's thread"))
        })?;
        Ok(objects)
    }

    fn compile_one(&self, args: &[OsString], object: &Path) -> Result<(), String> {
        let mut compile = Command::new(&self.compiler);
        compile.args([
            "-std=c++20",
            "-fPIC",
            "-fno-gnu-unique",
            "-ffp-contract=off",
            "-Wall",
            "-Wfloat-conversion",
            "-Werror",
        ]);
        compile.arg("-Wno-unknown-pragmas").args(args).arg("-I").arg(self.folder.path());
        finish(compile.arg("-c").arg("-o").arg(object))
    }
}

/// Whether this CPU has an instruction for a product and a sum.
fn has_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Attention with other tiles than the usual ones, of which the fake libraries have these for a dtype and a size of heads.
const TILED: [(&str, &str, &str); 1] = [("bf16", "32", "128x32")];

/// Whether a unit of attention is for one of these dtypes, sizes of heads and tiles.
pub fn has_tile(unit: &Unit, tiles: &[(&str, &str, &str)]) -> bool {
    match &unit.defines[..] {
        [(_, element), (_, head_dim), (_, rows), (_, walked), wgmma @ ..] => {
            let tile = format!("{rows}x{walked}{}", if wgmma.is_empty() { "" } else { "-wgmma" });
            tiles.contains(&(&element[..], &head_dim[..], &tile[..]))
        }
        _ => false,
    }
}

/// The units of attention with other tiles than the usual ones, each once.
pub fn tiled_units() -> Vec<Unit> {
    let mut units: Vec<Unit> = tiled_instances().map(|instance| instance.unit()).collect();
    units.sort();
    units.dedup();
    units
}

/// The units of the fake libraries: all but those of attention for heads of other sizes than these.
pub fn units_with_heads(dims: &[&str]) -> Vec<Unit> {
    let is_used = |unit: &Unit| match &unit.defines[..] {
        [_, (_, dim), ..] => dims.contains(&&dim[..]),
        _ => true,
    };
    let tiled = tiled_units().into_iter().filter(|unit| has_tile(unit, &TILED));
    let mut units = oarlock_cuda::compile::units(WGMMA_ARCH, None, None);
    units.extend(tiled);
    units.retain(is_used);
    units
}

/// Writes the fake libraries with these units into a folder.
pub fn write_fakes(compiler: OsString, units: &[Unit], folder: &Path) -> Result<(), String> {
    let workshop = Workshop::new(&std::env::temp_dir(), compiler);
    let kernels = workshop.kernels("kernels", units, &[], Sanitizer::None)?;
    let made = workshop.fakes(&kernels, &workshop.emulator()?)?;
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    for file in fs::read_dir(made).map_err(|error| error.to_string())?.flatten() {
        fs::copy(file.path(), folder.join(file.file_name())).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The fake libraries in `parent`, where the tests of all crates share them; compiled by the first process that asks after
/// a change of what they are made of. None, said aloud, where there is no C++ compiler: then there is no GPU either.
pub fn shared_fakes(parent: &Path, heads: &[&str]) -> Result<Option<PathBuf>, String> {
    let compiler = compiler();
    let has_gpu = oarlock_must::have("gpu", compiler.is_some(), "without g++ there is no emulated one");
    let Some(compiler) = compiler.filter(|_| has_gpu) else { return Ok(None) };
    let units = units_with_heads(heads);
    let mut hasher = DefaultHasher::new();
    for (name, text) in EMULATOR.into_iter().chain([LAUNCH]).chain(FAKES) {
        (name, text).hash(&mut hasher);
    }
    for source in HEADERS.iter().chain(units.iter().map(|unit| &unit.source)) {
        (source.file, source.text).hash(&mut hasher);
    }
    (heads, compiler.as_encoded_bytes()).hash(&mut hasher);
    let said = |error: std::io::Error| error.to_string();
    let folder = parent.join(format!("cuda-fakes-{:016x}", hasher.finish()));
    fs::create_dir_all(parent).map_err(said)?;
    let lock = fs::File::create(parent.join("cuda-fakes.lock")).map_err(said)?;
    lock.lock().map_err(said)?;
    if !folder.exists() {
        let partial = parent.join(format!("cuda-fakes-{}", std::process::id()));
        write_fakes(compiler, &units, &partial)?;
        fs::rename(&partial, &folder).map_err(said)?;
    }
    Ok(Some(folder))
}

fn finish(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}\n{said}")) }
}
