//! The library, and what it gives without a communicator.

use std::path::Path;
use std::sync::Arc;

use super::api::{Api, Id, call};
use super::id::UniqueId;
use crate::error::Result;
use crate::libraries::{Cuda, Libraries, Library};

/// NCCL, loaded.
#[derive(Clone)]
pub struct Nccl {
    pub(super) api: Arc<Api>,
}

impl Nccl {
    /// Loads libnccl where these libraries are.
    ///
    /// # Errors
    /// [`Error::NoLibrary`](crate::Error::NoLibrary), [`Error::Unusable`](crate::Error::Unusable).
    pub fn find(libraries: &Libraries) -> Result<Nccl> {
        libraries.load(Library::Nccl, None, Nccl::load)
    }

    /// The same for a driver that supports this version of CUDA, which an error names a package for.
    ///
    /// # Errors
    /// Those of [`find`](Nccl::find).
    pub fn find_for(libraries: &Libraries, cuda: Cuda) -> Result<Nccl> {
        libraries.load(Library::Nccl, Some(cuda), Nccl::load)
    }

    /// Loads this file, which must be of NCCL 2.14 or newer.
    ///
    /// # Errors
    /// [`Error::Unusable`](crate::Error::Unusable).
    pub fn load(file: &Path) -> Result<Nccl> {
        Ok(Nccl { api: Arc::new(Api::load(file)?) })
    }

    /// Its version, such as `2.30.7`. Ranks must have the same one.
    ///
    /// # Errors
    /// NCCL's own.
    pub fn version(&self) -> Result<String> {
        self.api.version()
    }

    /// A new id for a communicator. The process that makes it must live until all ranks have joined.
    ///
    /// # Errors
    /// NCCL's own.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = Id([0; UniqueId::BYTES]);
        // SAFETY: the pointer is valid for the call.
        let (name, code) = unsafe { call!(self.api, unique_id(&mut id)) };
        self.api.check(name, code)?;
        Ok(UniqueId::from_bytes(id.0))
    }
}
