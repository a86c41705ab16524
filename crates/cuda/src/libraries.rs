//! Where the shared libraries of CUDA are: in a folder that was named, or in the system, a toolkit, a Python.
//!
//! `OARLOCK_CUDA_LIBRARIES=folder` names a folder that holds all of them, or links to them; then no other is searched.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::os::unix::{Library as Loaded, RTLD_NOW};

use crate::error::{Error, Result};

/// The variable that names the folder of all libraries.
pub const VARIABLE: &str = "OARLOCK_CUDA_LIBRARIES";

/// Where containers and WSL put the driver's library without telling the system's loader.
const DRIVER_FOLDERS: [&str; 3] = ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib"];

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

    /// The command that gets it, where there is one for every machine.
    pub fn command(self) -> &'static str {
        match self {
            Library::Driver => "install the driver of the GPU",
            Library::Nvrtc => "pip install nvidia-cuda-nvrtc",
            Library::CublasLt => "pip install nvidia-cublas",
            Library::Nccl => "pip install nvidia-nccl-cu13",
            Library::Cudnn => "pip install nvidia-cudnn-cu13",
        }
    }

    /// How to get it.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Library::Driver => {
                "It comes with the driver of the GPU: install that (nvidia-smi shows whether it works), and give a \
                 container access to the GPU (--gpus all)"
            }
            Library::Nvrtc => {
                "Install it with `pip install nvidia-cuda-nvrtc` into the active Python, or install the CUDA toolkit and \
                 set CUDA_HOME to its folder"
            }
            Library::CublasLt => {
                "Install it with `pip install nvidia-cublas` into the active Python, or install the CUDA toolkit and set \
                 CUDA_HOME to its folder"
            }
            Library::Nccl => {
                "Install it with `pip install nvidia-nccl-cu13` (nvidia-nccl-cu12 for a driver of CUDA 12) into the active \
                 Python, or with the packages of the system (libnccl2)"
            }
            Library::Cudnn => {
                "Install it with `pip install nvidia-cudnn-cu13` (nvidia-cudnn-cu12 for a driver of CUDA 12) into the \
                 active Python, or with the packages of the system (libcudnn9)"
            }
        }
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

    /// Loads the first file that `load` takes.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] if there is none, the error of the first one if none can be loaded.
    pub(crate) fn load<T>(&self, library: Library, load: impl Fn(&Path) -> Result<T>) -> Result<T> {
        self.load_one_of(library, library.names(), load)
    }

    /// Loads the version `major` of a library that another one opens by its name alone, until the process ends.
    ///
    /// # Errors
    /// Those of [`load`](Libraries::load).
    pub(crate) fn keep_for_others(&self, library: Library, major: usize) -> Result<()> {
        let version = format!(".so.{major}");
        let names: Vec<&str> =
            library.names().iter().copied().filter(|name| name.ends_with(&version)).collect();
        self.load_one_of(library, &names, |file| {
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
        library: Library,
        names: &[&str],
        load: impl Fn(&Path) -> Result<T>,
    ) -> Result<T> {
        let (found, looked_in) = match self {
            Libraries::Folder(folder) => {
                let files = names.iter().map(|name| folder.join(name));
                let found: Vec<PathBuf> = files.filter(|file| file.exists()).collect();
                (found, vec![format!("{} ({VARIABLE} or the caller chose it)", folder.display())])
            }
            Libraries::System => candidates(library, names),
        };
        let mut refused = None;
        for file in found {
            match load(&file) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or(Error::NoLibrary { library, looked_in }))
    }
}

/// The files to try, in this order, and where they were looked for.
fn candidates(library: Library, names: &[&str]) -> (Vec<PathBuf>, Vec<String>) {
    let (mut found, mut looked_in) = (vec![], vec!["the system's libraries".to_string()]);
    // The loader knows its folders itself.
    found.extend(names.iter().map(PathBuf::from).filter(|name| is_loadable(name)));
    // The driver's library must be that of the kernel module; toolkits have only a stub of it.
    let folders: Vec<(String, PathBuf)> = match library {
        Library::Driver => DRIVER_FOLDERS.iter().map(|folder| (folder.to_string(), folder.into())).collect(),
        _ => toolkits().into_iter().chain(python_packages()).collect(),
    };
    for (said, folder) in folders {
        let file = names.iter().map(|name| folder.join(name)).find(|file| file.exists());
        // What is loaded runs: nobody else may have put it there.
        let (file, said) = match file.map(|file| (is_trusted(&folder) && is_trusted(&file), file)) {
            Some((false, file)) => {
                (None, format!("{said} ({} is not used: other users may write it)", file.display()))
            }
            file => (file.map(|(_, file)| file), said),
        };
        if !looked_in.contains(&said) {
            looked_in.push(said);
        }
        found.extend(file);
    }
    (found, looked_in)
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
