//! The host side of CUDA's driver: devices, contexts, streams, events, memory, copies, modules and launches.
//!
//! Everything belongs to a [`Context`], keeps it alive, and ends when it is dropped. Dropping reports nothing: an error
//! that a GPU met comes out of the next call, and whatever is dropped after the end of its context is gone already.
//! Any thread may use anything: each call makes its context the current one of its thread.

pub(crate) mod api;
mod context;
mod copy;
mod device;
mod error;
mod launch;
mod limits;
mod memory;
mod module;
mod pinned;
mod stream;
mod uses;

use std::ffi::c_int;
use std::path::Path;
use std::sync::Arc;

pub use context::{Context, Counts, MemoryInfo};
pub use device::Device;
pub(crate) use device::arch;
pub use error::DriverError;
pub use launch::{Arg, Slice};
pub use limits::{DeviceLimits, KernelNeeds};
pub use memory::DeviceMemory;
pub use module::{Function, Module};
pub use pinned::Pinned;
pub use stream::{Event, Stream};
pub use uses::{Use, Uses};

use crate::error::{Error, Result};
use crate::libraries::{Libraries, Library};
use api::{Api, call};

/// The driver, loaded and initialized.
#[derive(Clone)]
pub struct Driver {
    api: Arc<Api>,
}

impl Driver {
    /// Loads libcuda where these libraries are, and initializes it.
    ///
    /// # Errors
    /// [`Error::NoLibrary`], [`Error::Unusable`], or the driver's own error if there is no GPU that works.
    pub fn find(libraries: &Libraries) -> Result<Driver> {
        libraries.load(Library::Driver, None, Driver::load)
    }

    /// Loads this file, and initializes it.
    ///
    /// # Errors
    /// [`Error::Unusable`], or the driver's own error.
    pub fn load(file: &Path) -> Result<Driver> {
        let api = Arc::new(Api::load(file)?);
        // SAFETY: the flags must be 0; it may be called at any time and more than once.
        unsafe { call!(api, init(0)) }?;
        Ok(Driver { api })
    }

    /// The newest version of CUDA that the driver supports, such as `(13, 0)`.
    ///
    /// # Errors
    /// The driver's own.
    pub fn version(&self) -> Result<(u32, u32)> {
        self.api.cuda_version()
    }

    /// How many GPUs this process sees.
    ///
    /// # Errors
    /// The driver's own.
    pub fn device_count(&self) -> Result<usize> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is valid for the call.
        unsafe { call!(self.api, device_count(&mut count)) }?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    /// The GPU of this number.
    ///
    /// # Errors
    /// [`Error::NoDevice`], or the driver's own.
    pub fn device(&self, index: usize) -> Result<Device> {
        let count = self.device_count()?;
        let ordinal = c_int::try_from(index).ok().filter(|_| index < count);
        let ordinal = ordinal.ok_or(Error::NoDevice { wanted: index, count })?;
        let mut handle = 0;
        // SAFETY: the pointer is valid for the call.
        unsafe { call!(self.api, device(&mut handle, ordinal)) }?;
        Ok(Device::new(self.api.clone(), handle))
    }
}
