//! Where the shared libraries of CUDA are: in a folder that was named, or in the system, a toolkit, a Python.
//!
//! `OARLOCK_CUDA_LIBRARIES=folder` names a folder that holds all of them, or links to them; then no other is searched.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::os::unix::{Library as Loaded, RTLD_NOW};

use crate::error::{Error, Result};

/// Whether this program has its C library inside, and with it no loader of libraries, as one for musl.
pub(crate) const IS_STATIC: bool = cfg!(target_feature = "crt-static");

/// The variable that names the folder of all libraries.
pub const VARIABLE: &str = "OARLOCK_CUDA_LIBRARIES";

/// Where containers and WSL put the driver's library without telling the system's loader.
const DRIVER_FOLDERS: [&str; 3] = ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib"];

/// A version of CUDA, such as `(12, 4)`: the newest one that a driver supports.
pub type Cuda = (u32, u32);

/// A library that is loaded at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The driver's own.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Communication between GPUs.
    Nccl,
    /// Attention.
    Cudnn,
}

impl Library {
    /// The names of its versions that this crate can use, newest first.
    fn names(self) -> &'static [&'static str] {
        match self {
            Library::Driver => &["libcuda.so.1"],
            Library::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Library::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
            Library::Nccl => &["libnccl.so.2", "libnccl.so"],
            Library::Cudnn => &["libcudnn.so.9"],
        }
    }

    /// How its files are called.
    pub fn name(self) -> &'static str {
        match self {
            Library::Driver => "libcuda",
            Library::Nvrtc => "libnvrtc",
            Library::CublasLt => "libcublasLt",
            Library::Nccl => "libnccl",
            Library::Cudnn => "libcudnn",
        }
    }

    /// Its package for a driver that supports this version of CUDA, where that is known; none of the driver itself.
    fn package(self, cuda: Option<Cuda>) -> Option<&'static str> {
        let is_12 = cuda.is_some_and(|(major, _)| major <= 12);
        Some(match (self, is_12) {
            (Library::Driver, _) => return None,
            (Library::Nvrtc, false) => "nvidia-cuda-nvrtc",
            (Library::Nvrtc, true) => "nvidia-cuda-nvrtc-cu12",
            (Library::CublasLt, false) => "nvidia-cublas",
            (Library::CublasLt, true) => "nvidia-cublas-cu12",
            (Library::Nccl, false) => "nvidia-nccl-cu13",
            (Library::Nccl, true) => "nvidia-nccl-cu12",
            (Library::Cudnn, false) => "nvidia-cudnn-cu13",
            (Library::Cudnn, true) => "nvidia-cudnn-cu12",
        })
    }

    /// The command that gets it for a driver that supports this version of CUDA, where there is one for every machine.
    pub fn command(self, cuda: Option<Cuda>) -> String {
        match self.package(cuda) {
            Some(package) => format!("pip install {package}"),
            None => "install the driver of the GPU".to_owned(),
        }
    }

    /// How to get it.
    pub(crate) fn remedy(self, cuda: Option<Cuda>) -> String {
        let other = match self {
            Library::Driver => {
                return "It comes with the driver of the GPU: install that (nvidia-smi shows whether it works), and give a \
                        container access to the GPU (--gpus all)"
                    .to_owned();
            }
            Library::Nvrtc | Library::CublasLt => "install the CUDA toolkit and set CUDA_HOME to its folder",
            Library::Nccl => "with the packages of the system (libnccl2)",
            Library::Cudnn => "with the packages of the system (libcudnn9)",
        };
        let hint = match (cuda, self.package(Some((12, 0)))) {
            // Nobody knows which of both fits.
            (None, Some(package)) => format!(" ({package} for a driver of CUDA 12)"),
            _ => String::new(),
        };
        format!("Install it with `{}`{hint} into the active Python, or {other}", self.command(cuda))
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Driver => "libcuda, the library of the GPU's driver",
            Library::Nvrtc => "libnvrtc, the compiler of CUDA kernels",
            Library::CublasLt => "libcublasLt, the library of matrix products",
            Library::Nccl => "libnccl, the library of communication between GPUs",
            Library::Cudnn => "libcudnn, a library of attention",
        })
    }
}

/// Where libraries are searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Libraries {
    /// In this folder only.
    Folder(PathBuf),
    /// In the folders of the system's loader, in CUDA_HOME, and in the packages of the active Python.
    System,
}

impl Libraries {
    /// The folder that [`VARIABLE`] names, else the system.
    pub fn from_environment() -> Libraries {
        match std::env::var_os(VARIABLE) {
            Some(folder) if !folder.is_empty() => Libraries::Folder(folder.into()),
            _ => Libraries::System,
        }
    }

    /// Loads the first file that `load` takes. Of versions for a newer CUDA than the driver supports none is loaded, where it
    /// is known what that is.
    ///
    /// # Errors
    /// The error of the first file where none can be loaded, [`Error::TooNew`] where all are too new, [`Error::NoLibrary`] if
    /// there is none, [`Error::Static`] where the program opens none.
    pub(crate) fn load<T>(
        &self,
        library: Library,
        cuda: Option<Cuda>,
        load: impl FnMut(&Path) -> Result<T>,
    ) -> Result<T> {
        self.load_one_of((library, cuda), library.names(), load)
    }

    /// Loads the version `major` of a library that another one opens by its name alone, until the process ends.
    ///
    /// # Errors
    /// Those of [`load`](Libraries::load).
    pub(crate) fn keep_for_others(&self, library: Library, major: usize) -> Result<()> {
        let version = format!(".so.{major}");
        let names: Vec<&str> =
            library.names().iter().copied().filter(|name| name.ends_with(&version)).collect();
        let cuda = u32::try_from(major).ok().map(|major| (major, 0));
        self.load_one_of((library, cuda), &names, |file| {
            // SAFETY: the initialization of these libraries has no conditions.
            let loaded = unsafe { Loaded::open(Some(file), RTLD_NOW) };
            loaded.map(std::mem::forget).map_err(|error| Error::Unusable {
                library,
                file: file.into(),
                reason: error.to_string(),
            })
        })
    }

    fn load_one_of<T>(
        &self,
        (library, cuda): (Library, Option<Cuda>),
        names: &[&str],
        mut load: impl FnMut(&Path) -> Result<T>,
    ) -> Result<T> {
        if IS_STATIC {
            return Err(Error::Static { library });
        }
        let is_too_new = |name: &str| cuda.is_some_and(|(most, _)| major_of(name) > Some(most));
        let (too_new, usable): (Vec<&str>, Vec<&str>) =
            names.iter().copied().partition(|name| is_too_new(name));
        let places = Places::of(self, library);
        let mut refused = None;
        for file in places.files(&usable) {
            match load(&file) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let not_loaded = || {
            let (cuda, file) = (cuda?, places.files(&too_new).next()?);
            let version = major_of(&file.to_string_lossy()).map(|major| major.to_string());
            Some(Error::TooNew { library, file, version: version.unwrap_or_default(), cuda })
        };
        Err(refused.or_else(not_loaded).unwrap_or_else(|| Error::NoLibrary {
            library,
            looked_in: places.looked_in(names),
            cuda,
        }))
    }
}

/// The major version in the name of a file, such as 13 of libnvrtc.so.13; none where it has none.
fn major_of(name: &str) -> Option<u32> {
    name.rsplit_once(".so.")?.1.split('.').next()?.parse().ok()
}

/// An error where a library is for a newer CUDA than the driver supports. Its version is said as `(13, 0)`.
pub(crate) fn expect_usable(
    library: Library,
    file: &Path,
    version: (u32, u32),
    cuda: Option<Cuda>,
) -> Result<()> {
    match cuda {
        Some(cuda) if version.0 > cuda.0 => {
            let version = format!("{}.{}", version.0, version.1);
            Err(Error::TooNew { library, file: file.into(), version, cuda })
        }
        _ => Ok(()),
    }
}

/// Where a library is looked for.
struct Places {
    /// Whether the system's loader knows folders of its own.
    has_loader: bool,
    /// Folders, with what an error says about them.
    folders: Vec<(String, PathBuf)>,
    /// Whether other users may not write there.
    is_for_trusted: bool,
}

impl Places {
    fn of(libraries: &Libraries, library: Library) -> Places {
        let folders = match (libraries, library) {
            (Libraries::Folder(folder), _) => {
                let said = format!("{} ({VARIABLE} or the caller chose it)", folder.display());
                return Places {
                    has_loader: false,
                    folders: vec![(said, folder.clone())],
                    is_for_trusted: false,
                };
            }
            // The driver's library must be that of the kernel module; toolkits have only a stub of it.
            (_, Library::Driver) => {
                DRIVER_FOLDERS.iter().map(|folder| (folder.to_string(), folder.into())).collect()
            }
            _ => toolkits().into_iter().chain(python_packages()).collect(),
        };
        Places { has_loader: true, folders, is_for_trusted: true }
    }

    /// The files of these names, those of the loader first, and in one place the first name first.
    fn files(&self, names: &[&str]) -> impl Iterator<Item = PathBuf> {
        let by_loader = names.iter().map(PathBuf::from).filter(|name| self.has_loader && is_loadable(name));
        let in_folders =
            self.folders.iter().flat_map(|(_, folder)| names.iter().map(|name| folder.join(name)));
        by_loader.chain(in_folders.filter(|file| file.exists() && self.is_allowed(file)))
    }

    /// What is loaded runs: nobody else may have put it there.
    fn is_allowed(&self, file: &Path) -> bool {
        !self.is_for_trusted || file.parent().is_some_and(is_trusted) && is_trusted(file)
    }

    /// The places in words, with the files that were not used since others may write them.
    fn looked_in(&self, names: &[&str]) -> Vec<String> {
        let mut all = vec![];
        if self.has_loader {
            all.push("the system's libraries".to_owned());
        }
        for (said, folder) in &self.folders {
            let mut files = names.iter().map(|name| folder.join(name)).filter(|file| file.exists());
            let said = match files.find(|file| !self.is_allowed(file)) {
                Some(file) => format!("{said} ({} is not used: other users may write it)", file.display()),
                None => said.clone(),
            };
            if !all.contains(&said) {
                all.push(said);
            }
        }
        all
    }
}

fn is_loadable(name: &Path) -> bool {
    // SAFETY: the initialization of these libraries has no conditions.
    match unsafe { Loaded::open(Some(name), RTLD_NOW) } {
        Ok(library) => {
            // It is used soon; and libcuda does not expect to be unloaded.
            std::mem::forget(library);
            true
        }
        Err(_) => false,
    }
}

/// The library folders of toolkits, with what an error says about them.
fn toolkits() -> Vec<(String, PathBuf)> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| {
        let home = PathBuf::from(std::env::var_os(name)?);
        Some((format!("{name} ({})", home.display()), home))
    });
    let usual = PathBuf::from("/usr/local/cuda");
    let homes = homes.chain([(usual.display().to_string(), usual)]);
    homes.flat_map(|(said, home)| ["lib64", "lib"].map(|lib| (said.clone(), home.join(lib)))).collect()
}

/// The folders `nvidia/*/lib` in the packages of the active Python.
fn python_packages() -> Vec<(String, PathBuf)> {
    let mut folders = vec![];
    for path in python_path() {
        let Ok(packages) = std::fs::read_dir(path.join("nvidia")) else { continue };
        let mut packages: Vec<PathBuf> = packages.flatten().map(|entry| entry.path().join("lib")).collect();
        // Newer versions have the later names: cu13 before cuda_nvrtc is decided by what is there.
        packages.sort();
        folders.extend(packages.into_iter().map(|lib| (lib.display().to_string(), lib)));
    }
    if folders.is_empty() {
        folders.push(("nvidia/*/lib in the packages of python3".to_string(), PathBuf::new()));
    }
    folders
}

/// Whether what lies at an absolute path is of root or of this user, and no other user may write it.
fn is_trusted(path: &Path) -> bool {
    let owner =
        |owner: u32| owner == 0 || std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == owner);
    path.is_absolute()
        && std::fs::metadata(path).is_ok_and(|found| owner(found.uid()) && found.mode() & 0o002 == 0)
}

/// Where the active Python imports from: what it says itself, or, if it does not run, its environment's folder. It is asked apart
/// from the working directory and from PYTHONPATH, in which others' modules would run.
fn python_path() -> Vec<PathBuf> {
    let program = "import site, sys; print('\\n'.join([*sys.path, site.getusersitepackages()]))";
    let said = Command::new("python3").args(["-I", "-c", program]).output();
    if let Ok(output) = said
        && output.status.success()
    {
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        return lines.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect();
    }
    let homes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os);
    let libs = homes
        .flat_map(|home| std::fs::read_dir(Path::new(&home).join("lib")).into_iter().flatten().flatten());
    libs.map(|entry| entry.path().join("site-packages")).filter(|folder| folder.exists()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_package_fits_the_driver() {
        for library in [Library::Nvrtc, Library::CublasLt, Library::Nccl, Library::Cudnn] {
            assert!(library.command(Some((12, 9))).ends_with("-cu12"), "{library}");
            assert!(!library.command(Some((13, 0))).ends_with("-cu12"), "{library}");
            assert!(library.remedy(Some((12, 9))).contains(&library.command(Some((12, 9)))), "{library}");
            assert!(library.remedy(None).contains("-cu12 for a driver of CUDA 12)"), "{library}");
        }
        assert_eq!((major_of("libnvrtc.so.13"), major_of("x/libnvrtc.so.12.9.1")), (Some(13), Some(12)));
        assert_eq!(major_of("libnvrtc.so"), None);
    }

    #[test]
    fn a_library_that_others_may_write_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libnvrtc.so.13");
        std::fs::write(&file, "").unwrap();
        assert!(is_trusted(folder.path()) && is_trusted(&file));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!is_trusted(&file));
        assert!(!is_trusted(Path::new("src")) && !is_trusted(&folder.path().join("missing")));
    }
}
