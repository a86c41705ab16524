//! A GPU, and what the driver knows about it.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use super::api::{Api, Code, DeviceHandle, call};
use super::context::Context;
use super::limits::DeviceLimits;
use crate::binding::Function;
use crate::error::Result;

const THREADS: c_int = 1;
const GRID: [c_int; 3] = [5, 6, 7];
const USUAL_SHARED_BYTES: c_int = 8;
const REGISTERS: c_int = 12;
const MULTIPROCESSORS: c_int = 16;
const CAPABILITY: [c_int; 2] = [75, 76];
const SHARED_BYTES: c_int = 97;

/// What the driver adds to the name of a GPU of which this is a slice, before the size of that.
const SLICE: &str = " MIG ";

/// A GPU.
#[derive(Clone)]
pub struct Device {
    api: Arc<Api>,
    handle: DeviceHandle,
}

/// The architecture that kernels are compiled for of this compute capability.
pub(crate) fn arch((major, minor): (u32, u32)) -> String {
    // Hopper's own instructions are only in the variant of this name.
    let variant = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{variant}")
}

/// A function that writes a text of limited length about a device.
type Describe = Function<unsafe extern "C" fn(*mut c_char, c_int, DeviceHandle) -> Code>;

impl Device {
    pub(super) fn new(api: Arc<Api>, handle: DeviceHandle) -> Device {
        Device { api, handle }
    }

    pub(super) fn api(&self) -> &Arc<Api> {
        &self.api
    }

    pub(super) fn handle(&self) -> DeviceHandle {
        self.handle
    }

    /// The name of its model.
    ///
    /// # Errors
    /// The driver's own, as for all that follow.
    pub fn name(&self) -> Result<String> {
        self.text(&self.api.device_name)
    }

    /// Where it is on the PCI bus, such as `0000:1b:00.0`.
    pub fn pci_id(&self) -> Result<String> {
        self.text(&self.api.device_bus)
    }

    fn text(&self, describe: &Describe) -> Result<String> {
        let mut text = [0 as c_char; 256];
        // SAFETY: the function writes at most as many bytes as it is told.
        let code = unsafe { (describe.call)(text.as_mut_ptr(), text.len() as c_int, self.handle) };
        self.api.check(describe.name, code)?;
        let bytes = text.map(|byte| byte as u8);
        Ok(CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// What identifies this very device, as `nvidia-smi -L` prints it.
    pub fn uuid(&self) -> Result<String> {
        let mut bytes = [0; 16];
        // SAFETY: a CUuuid is 16 bytes.
        unsafe { call!(self.api, device_uuid(&mut bytes, self.handle)) }?;
        let hex = |range: std::ops::Range<usize>| -> String {
            bytes[range].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let kind = if self.is_slice()? { "MIG" } else { "GPU" };
        Ok(format!("{kind}-{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)))
    }

    /// Whether it is a slice of a GPU, which NVIDIA calls a Multi-Instance GPU.
    pub fn is_slice(&self) -> Result<bool> {
        Ok(self.name()?.contains(SLICE))
    }

    /// The newest version of CUDA that its driver supports, such as `(13, 0)`.
    pub fn cuda_version(&self) -> Result<(u32, u32)> {
        self.api.cuda_version()
    }

    /// Its compute capability, such as `(9, 0)`.
    pub fn capability(&self) -> Result<(u32, u32)> {
        Ok((self.attribute(CAPABILITY[0])?, self.attribute(CAPABILITY[1])?))
    }

    /// The architecture that kernels are compiled for, such as `sm_90a`.
    pub fn arch(&self) -> Result<String> {
        Ok(arch(self.capability()?))
    }

    /// Bytes of its memory.
    pub fn memory_bytes(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the pointer is valid for the call.
        unsafe { call!(self.api, device_memory(&mut bytes, self.handle)) }?;
        Ok(bytes)
    }

    /// How many multiprocessors it has.
    pub fn multiprocessors(&self) -> Result<u32> {
        self.attribute(MULTIPROCESSORS)
    }

    /// What it gives to a launch.
    pub fn limits(&self) -> Result<DeviceLimits> {
        Ok(DeviceLimits {
            grid: [self.attribute(GRID[0])?, self.attribute(GRID[1])?, self.attribute(GRID[2])?],
            threads: self.attribute(THREADS)?,
            registers: self.attribute(REGISTERS)?,
            usual_shared_bytes: self.attribute(USUAL_SHARED_BYTES)? as usize,
            shared_bytes: self.attribute(SHARED_BYTES)? as usize,
        })
    }

    fn attribute(&self, attribute: c_int) -> Result<u32> {
        let mut value: c_int = 0;
        // SAFETY: the pointer is valid for the call.
        unsafe { call!(self.api, device_attribute(&mut value, attribute, self.handle)) }?;
        Ok(u32::try_from(value).unwrap_or_default())
    }

    /// Its primary context, which everything in the process shares.
    pub fn context(&self) -> Result<Context> {
        Context::new(self)
    }
}
