//! An error of the driver: the call, the name, the text, and what to do.

use std::fmt;

/// A call of libcuda that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The function.
    pub call: &'static str,
    /// Its `CUresult`.
    pub code: i32,
    /// The name of that, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// What the driver says about it.
    pub text: String,
}

/// Where an error that a GPU met while it worked comes out of all later calls.
const STICKY: [i32; 13] = [214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721];

impl DriverError {
    /// Whether the context is lost: every later call in it fails with the same error.
    pub fn is_sticky(&self) -> bool {
        STICKY.contains(&self.code)
    }

    /// Whether there was not enough memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == 2
    }

    /// Whether the process sees no GPU, or only the library that a toolkit has in place of a driver's.
    pub(crate) fn shows_no_gpu(&self) -> bool {
        matches!(self.code, 34 | 100)
    }

    /// Whether the driver cannot use machine code that it was given.
    pub(crate) fn is_of_image(&self) -> bool {
        matches!(self.code, 200 | 209 | 218 | 221 | 222 | 223)
    }

    /// What to do about it, where there is something to say.
    fn remedy(&self) -> &'static str {
        match self.code {
            2 => "Use less memory: a smaller batch, more sharding, or a GPU that no other process uses",
            3 | 4 => "The driver is not initialized or ends already: keep GPU work inside of main",
            34 => "This libcuda is the stub of a toolkit: take its folder out of LD_LIBRARY_PATH",
            35 | 36 | 803 | 804 => {
                "The driver's library and kernel module do not fit: update the driver, or restart"
            }
            46 | 802 => "The GPU is busy or not ready: see nvidia-smi, and try again",
            100 | 101 => "No GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES",
            200 | 209 | 218 | 221 | 222 | 223 => {
                "The machine code is for another GPU or from a newer compiler than the driver"
            }
            201 | 709 => "The context of the GPU was destroyed by something else in the process",
            214 | 220 => "The hardware reports an error: see nvidia-smi -q and dmesg",
            304 | 999 => {
                "The system refuses the GPU: see dmesg; loading the module nvidia_uvm again or a restart may help"
            }
            701 => "The kernel takes more registers or shared memory than the GPU has",
            702 => "A time limit of the system ended the kernel, as on a GPU that also drives a display",
            _ => "",
        }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DriverError { call, name, text, .. } = self;
        write!(f, "{call} failed: {name}: {text}")?;
        if !self.remedy().is_empty() {
            write!(f, ". {}", self.remedy())?;
        }
        if self.is_sticky() {
            write!(
                f,
                ". An earlier launch may be the cause: kernels report their errors late, and the context of the GPU is \
                 lost. Start the process again; CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer finds the launch"
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for DriverError {}
