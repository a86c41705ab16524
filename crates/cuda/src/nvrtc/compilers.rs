//! The compilers that are found for a GPU: one is used until its driver refuses what it makes, and then the next one.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::Nvrtc;
use crate::driver::{Device, DriverError};
use crate::error::{Error, Result};
use crate::libraries::{Cuda, Libraries, Library, expect_usable};

/// A compiler, and what it compiles for so that the GPU can run it.
pub(crate) struct Compiler {
    pub(crate) nvrtc: Nvrtc,
    pub(crate) arch: String,
}

/// Those for a GPU.
pub(crate) struct Compilers {
    libraries: Libraries,
    cuda: Cuda,
    /// That of the GPU.
    arch: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Loaded when the first unit is asked for.
    current: Option<Arc<Compiler>>,
    /// Files whose code the driver has refused, and what it said of the first one.
    refused: Vec<PathBuf>,
    why: Option<(Arc<Compiler>, DriverError)>,
}

/// The first compiler where these libraries are that a driver for this version of CUDA and a GPU of this architecture can use.
///
/// # Errors
/// [`Error::NoLibrary`], [`Error::TooNew`], [`Error::UnknownArch`], [`Error::Unusable`].
pub(crate) fn for_gpu(libraries: &Libraries, cuda: Cuda, arch: &str) -> Result<Compiler> {
    find(libraries, cuda, arch, &[])
}

fn find(libraries: &Libraries, cuda: Cuda, arch: &str, refused: &[PathBuf]) -> Result<Compiler> {
    libraries.load(Library::Nvrtc, Some(cuda), |file| {
        let nvrtc = Nvrtc::load(file)?;
        if refused.iter().any(|refused| refused == file) {
            let reason = "the driver refuses the machine code that it makes".to_owned();
            return Err(Error::Unusable { library: Library::Nvrtc, file: file.into(), reason });
        }
        expect_usable(Library::Nvrtc, file, nvrtc.cuda, Some(cuda))?;
        let arch = nvrtc.arch_for(arch, Some(cuda))?;
        Ok(Compiler { nvrtc, arch })
    })
}

impl Compilers {
    /// None is loaded yet.
    ///
    /// # Errors
    /// The driver's own.
    pub(crate) fn new(libraries: &Libraries, device: &Device) -> Result<Compilers> {
        let (cuda, arch) = (device.cuda_version()?, device.arch()?);
        Ok(Compilers { libraries: libraries.clone(), cuda, arch, state: Mutex::default() })
    }

    /// The one that is used, if one was needed so far.
    pub(crate) fn loaded(&self) -> Option<Arc<Compiler>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).current.clone()
    }

    /// The one that is used from now on.
    ///
    /// # Errors
    /// Those of [`for_gpu`].
    pub(crate) fn current(&self) -> Result<Arc<Compiler>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.load(&mut state)
    }

    /// The next one, since the driver refuses what this one makes.
    ///
    /// # Errors
    /// [`Error::Refused`] with what the driver has said of the first one, where there is no other.
    pub(crate) fn instead_of(&self, refused: &Arc<Compiler>, why: DriverError) -> Result<Arc<Compiler>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have found out before.
        if state.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, refused)) {
            state.refused.push(refused.nvrtc.file().to_owned());
            state.why.get_or_insert_with(|| (refused.clone(), why));
            state.current = None;
        }
        let (first, reason) = match &state.why {
            Some((first, reason)) => (first.clone(), reason.clone()),
            None => return self.load(&mut state),
        };
        self.load(&mut state).map_err(|_| Error::Refused {
            version: first.nvrtc.version().to_owned(),
            file: first.nvrtc.file().to_owned(),
            arch: first.arch.clone(),
            cuda: self.cuda,
            reason: Box::new(reason),
        })
    }

    fn load(&self, state: &mut State) -> Result<Arc<Compiler>> {
        if let Some(current) = &state.current {
            return Ok(current.clone());
        }
        let found = Arc::new(find(&self.libraries, self.cuda, &self.arch, &state.refused)?);
        state.current = Some(found.clone());
        Ok(found)
    }
}
