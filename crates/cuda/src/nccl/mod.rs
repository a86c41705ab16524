//! Communication between GPUs by NCCL.
//!
//! One rank makes a [`UniqueId`] and gives it to all, each of which makes its [`Comm`] of it. A collective runs in the order
//! of the stream that it is given, when all ranks have come to it; an event has to order it behind work of other streams.
//!
//! Nothing here waits without an end. Communicators are nonblocking, what a call waits for has a [`Patience`], and
//! [`Comm::wait`] and [`Comm::synchronize`] look at the other ranks while they wait for a stream. Whatever fails aborts the
//! communicator: the GPU then gives up what hangs, and other ranks learn of it.

mod api;
mod collective;
mod comm;
mod error;
mod group;
mod id;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use collective::Reduction;
pub use comm::Comm;
pub use error::NcclError;
pub use group::Group;
pub use id::UniqueId;

use crate::error::Result;
use crate::libraries::{Libraries, Library};
use api::{Api, Id, call};

/// NCCL, loaded.
#[derive(Clone)]
pub struct Nccl {
    api: Arc<Api>,
}

/// How long to wait for other ranks, and how often to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// After this long it is an error.
    pub timeout: Duration,
    /// The time between two looks.
    pub poll: Duration,
}

impl Patience {
    /// Looks each millisecond for this long.
    pub fn new(timeout: Duration) -> Patience {
        Patience { timeout, poll: Duration::from_millis(1) }
    }
}

impl Default for Patience {
    /// Half an hour: another rank may be writing a checkpoint.
    fn default() -> Patience {
        Patience::new(Duration::from_secs(1800))
    }
}

impl Nccl {
    /// Loads libnccl where these libraries are.
    ///
    /// # Errors
    /// [`Error::NoLibrary`](crate::Error::NoLibrary), [`Error::Unusable`](crate::Error::Unusable).
    pub fn find(libraries: &Libraries) -> Result<Nccl> {
        libraries.load(Library::Nccl, Nccl::load)
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
