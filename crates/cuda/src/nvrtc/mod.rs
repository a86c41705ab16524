//! Compilation at run time: NVRTC makes the machine code of a unit for one architecture.

mod api;
mod arch;
mod compilers;
mod usage;

use std::ffi::{CString, c_int};
use std::path::{Path, PathBuf};

pub(crate) use compilers::{Compiler, Compilers, for_gpu};
pub use usage::Usage;

use crate::error::{Error, Result};
use crate::libraries::{Cuda, Libraries, Library};
use crate::source::{HEADERS, Unit};
use api::{Api, Program};

/// NVRTC, found and loaded.
pub struct Nvrtc {
    api: Api,
    file: PathBuf,
    version: String,
    cuda: Cuda,
}

/// The machine code of a unit.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The code for the architecture, as `cuModuleLoadData` takes it.
    pub cubin: Vec<u8>,
    /// What the compiler said.
    pub log: String,
    /// What each kernel uses of a multiprocessor.
    pub usage: Vec<Usage>,
}

impl Nvrtc {
    /// Looks for libnvrtc where these libraries are.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] if it is nowhere, [`Error::Unusable`] if what is there cannot be loaded.
    pub fn find(libraries: &Libraries) -> Result<Nvrtc> {
        libraries.load(Library::Nvrtc, None, Nvrtc::load)
    }

    /// Loads this file.
    ///
    /// # Errors
    /// [`Error::Unusable`].
    pub fn load(file: &Path) -> Result<Nvrtc> {
        api::load_builtins(file);
        let api = Api::load(file)?;
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        unsafe { (api.version.call)(&mut major, &mut minor) };
        let cuda = (u32::try_from(major).unwrap_or_default(), u32::try_from(minor).unwrap_or_default());
        Ok(Nvrtc { api, file: file.into(), version: format!("{major}.{minor}"), cuda })
    }

    /// Its version, such as `13.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The version of CUDA that it belongs to, which is its own.
    pub fn cuda(&self) -> Cuda {
        self.cuda
    }

    /// The file it was loaded from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Compiles a unit for an architecture such as `sm_90a`.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's log, [`Error::Call`] if it fails otherwise.
    pub fn compile(&self, unit: &Unit, arch: &str) -> Result<Compiled> {
        let options = options(unit, arch);
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let headers: Vec<_> = HEADERS.iter().map(|header| (text(header.text), text(header.file))).collect();
        let source = (text(unit.source.text), text(unit.source.file));
        let program =
            Program::new(&self.api, &source, &headers).map_err(|(call, code)| self.failed(call, code))?;
        let options: Vec<CString> = options.iter().map(|option| text(option)).collect();
        let code = program.compile(&options);
        let log = String::from_utf8_lossy(&program.log()).into_owned();
        if code == api::COMPILATION_ERROR {
            let (version, arch) = (self.version.clone(), arch.to_string());
            return Err(Error::Compile { version, unit: unit.to_string(), arch, log });
        }
        if code != 0 {
            let reason = [&self.api.error_name(code), log.trim()].join(": ");
            let reason = reason.trim_end_matches(": ").to_owned();
            return Err(Error::Call { call: "nvrtcCompileProgram", version: self.version.clone(), reason });
        }
        let cubin = program.cubin().map_err(|(call, code)| self.failed(call, code))?;
        if cubin.is_empty() {
            let reason = "it has no machine code".to_owned();
            return Err(Error::Call { call: "nvrtcGetCUBINSize", version: self.version.clone(), reason });
        }
        let usage = usage::parse(&log);
        Ok(Compiled { cubin, log, usage })
    }

    fn failed(&self, call: &'static str, code: c_int) -> Error {
        Error::Call { call, version: self.version.clone(), reason: self.api.error_name(code) }
    }
}

/// What the compiler is told about a unit.
pub(crate) fn options(unit: &Unit, arch: &str) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_string(),
        "--ptxas-options=-v".to_string(),
        // Kernels contain lambdas, which carry no annotation.
        "--device-as-default-execution-space".to_string(),
    ];
    options.extend(unit.defines.iter().map(|(name, value)| format!("--define-macro={name}={value}")));
    options
}
