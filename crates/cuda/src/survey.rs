//! What a process would run on: the GPUs that it sees, their driver, and each library with its version and file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::blas;
use crate::driver::{Driver, arch};
use crate::error::{Error, Result};
use crate::libraries::{Cuda, IS_STATIC, Libraries, Library, expect_usable};
use crate::modules::LEAST_CAPABILITY;
use crate::nccl::Nccl;
use crate::nvrtc::{self, Nvrtc};

/// Where a process computes that was not told where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Automatic {
    /// On the CPU: there is no driver, or it shows no GPU.
    Cpu,
    /// On the CPU, although there is a driver: why, and how to change that, in one line.
    Lacks(String),
    /// On these of the GPUs that it sees.
    Gpus(Vec<usize>),
}

/// A GPU that the process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundGpu {
    /// Its model.
    pub name: String,
    /// What identifies it, as `nvidia-smi -L` prints it.
    pub uuid: String,
    /// Its memory.
    pub memory_bytes: usize,
    /// Its compute capability, such as `(9, 0)`.
    pub capability: (u32, u32),
}

/// A library that can be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLibrary {
    /// Its version.
    pub version: String,
    /// Its file.
    pub file: PathBuf,
}

/// What a process would run on.
#[derive(Debug)]
pub struct Survey {
    /// The GPUs, by their numbers, or why there are none.
    pub gpus: Result<Vec<FoundGpu>>,
    /// The driver: the version of its kernel module where the system tells it, and the newest CUDA that it supports.
    pub driver: Result<FoundLibrary>,
    /// What the driver supports, where there is one.
    pub cuda: Option<Cuda>,
    /// The other libraries, or what is missing and how to get it.
    pub libraries: [(Library, Result<FoundLibrary>); 3],
}

impl Survey {
    /// Looks for all of it where these libraries are.
    pub fn of(libraries: &Libraries) -> Survey {
        let driver = Driver::find(libraries);
        let gpus = driver.as_ref().map_err(|_| ()).map(gpus);
        let cuda = driver.as_ref().ok().and_then(|driver| driver.version().ok());
        let described = driver.and_then(|driver| {
            let (major, minor) = driver.version()?;
            let cuda = format!("CUDA up to {major}.{minor}");
            let version = match kernel_module() {
                Some(module) => format!("{module}, for {cuda}"),
                None => format!("for {cuda}"),
            };
            Ok(FoundLibrary { version, file: loaded(Path::new("libcuda.so.1")) })
        });
        let gpus = gpus.unwrap_or(Ok(vec![]));
        let find = |library, version: &dyn Fn(&Path) -> Result<String>| {
            let found = libraries.load(library, cuda, |file| {
                // The version needs the library, so that its path is known after that.
                let version = version(file)?;
                Ok(FoundLibrary { version, file: loaded(file) })
            });
            (library, found)
        };
        let libraries = [
            find(Library::Nvrtc, &|file| {
                let nvrtc = Nvrtc::load(file)?;
                expect_usable(Library::Nvrtc, file, nvrtc.cuda(), cuda)?;
                Ok(nvrtc.version().to_owned())
            }),
            find(Library::CublasLt, &|file| blas::version_of(file, cuda)),
            find(Library::Nccl, &|file| Nccl::load(file)?.version()),
        ];
        Survey { gpus, driver: described, cuda, libraries }
    }
}

impl FoundGpu {
    /// Whether the kernels run on it.
    pub fn is_usable(&self) -> bool {
        self.capability >= LEAST_CAPABILITY
    }
}

/// The GPUs that a driver shows.
///
/// # Errors
/// The driver's own.
pub fn gpus(driver: &Driver) -> Result<Vec<FoundGpu>> {
    (0..driver.device_count()?)
        .map(|index| {
            let device = driver.device(index)?;
            Ok(FoundGpu {
                name: device.name()?,
                uuid: device.uuid()?,
                memory_bytes: device.memory_bytes()?,
                capability: device.capability()?,
            })
        })
        .collect()
}

/// The GPUs that this process sees; none where there is no driver.
///
/// # Errors
/// The driver's own, where it does not work.
pub fn visible_gpus(libraries: &Libraries) -> Result<Vec<FoundGpu>> {
    match Driver::find(libraries) {
        Ok(driver) => gpus(&driver),
        Err(Error::NoLibrary { .. } | Error::Static { .. }) => Ok(vec![]),
        Err(Error::Driver(error)) if error.shows_no_gpu() => Ok(vec![]),
        Err(error) => Err(error),
    }
}

/// Where a process computes that was not told where. Without a driver that is known after a look for its library.
pub fn automatic(libraries: &Libraries) -> Automatic {
    let found = match visible_gpus(libraries) {
        Ok(found) if found.is_empty() => return without_gpu(IS_STATIC, kernel_module().is_some()),
        Ok(found) => found,
        Err(error) => return Automatic::Lacks(format!("the driver of the GPU does not work: {error}")),
    };
    let usable: Vec<usize> = (0..found.len()).filter(|index| found[*index].is_usable()).collect();
    let many = if found.len() == 1 { "a GPU".to_owned() } else { format!("{} GPUs", found.len()) };
    if usable.is_empty() {
        let FoundGpu { name, capability, .. } = &found[0];
        let old = Error::OldDevice { name: name.clone(), capability: *capability };
        return Automatic::Lacks(format!("this machine has {many}, but {old}"));
    }
    let cuda = match Driver::find(libraries).and_then(|driver| driver.version()) {
        Ok(cuda) => cuda,
        Err(error) => return Automatic::Lacks(format!("the driver of the GPU does not work: {error}")),
    };
    // Each may be of another architecture.
    let compiles = |index: &usize| nvrtc::for_gpu(libraries, cuda, &arch(found[*index].capability)).map(drop);
    let (can, cannot): (Vec<_>, Vec<_>) =
        usable.into_iter().map(|index| (index, compiles(&index))).partition(|(_, compiles)| compiles.is_ok());
    match cannot.into_iter().find_map(|(_, compiles)| compiles.err()).filter(|_| can.is_empty()) {
        None => Automatic::Gpus(can.into_iter().map(|(index, _)| index).collect()),
        Some(Error::NoLibrary { library, .. }) => Automatic::Lacks(format!(
            "this machine has {many}, but {library}, was not found; `{}` gets it",
            library.command(Some(cuda))
        )),
        Some(error) => Automatic::Lacks(format!("this machine has {many}, but {error}")),
    }
}

/// Where a process computes that sees no GPU. A static program sees none, also where there are some.
fn without_gpu(is_static: bool, has_kernel_module: bool) -> Automatic {
    match is_static && has_kernel_module {
        true => Automatic::Lacks(format!(
            "this machine has the driver of a GPU, but {}",
            Error::Static { library: Library::Driver }
        )),
        false => Automatic::Cpu,
    }
}

/// The version of the driver's kernel module, such as `580.65.06`: the first number of NVIDIA's line.
fn kernel_module() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

/// Where a library was loaded from that the system's loader found by its name alone.
fn loaded(file: &Path) -> PathBuf {
    let (None | Some(""), Some(name)) = (file.parent().and_then(Path::to_str), file.file_name()) else {
        return file.to_owned();
    };
    let stem = name.to_string_lossy().into_owned();
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    // A name of one version, such as libnvrtc.so.13, is a link to a file of a longer name.
    let is_it = |path: &&Path| path.file_name().is_some_and(|own| own.to_string_lossy().starts_with(&stem));
    paths.find(is_it).unwrap_or(file).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_program_says_why_it_leaves_a_gpu_alone() {
        let Automatic::Lacks(why) = without_gpu(true, true) else { panic!("it says nothing") };
        assert!(why.contains("this program is static") && why.contains("glibc"), "{why}");
        for (is_static, has_kernel_module) in [(true, false), (false, true), (false, false)] {
            assert_eq!(without_gpu(is_static, has_kernel_module), Automatic::Cpu);
        }
    }
}
