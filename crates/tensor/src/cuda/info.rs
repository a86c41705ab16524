//! What a report says about a GPU: the device, the libraries that run it, and the kernels that were compiled for it.

use std::time::Duration;

use oarlock_kernels::Result;

use super::{Gpu, failed};

/// A GPU, what runs it, and what it has compiled so far.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuInfo {
    /// Its model.
    pub name: String,
    /// Its memory.
    pub memory_bytes: usize,
    /// Its compute capability, such as `(9, 0)`.
    pub capability: (u32, u32),
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// The newest version of CUDA that its driver supports.
    pub driver: (u32, u32),
    /// The version of cuBLASLt; `None` where it was not found and the own kernels compute matrix products.
    pub cublas_lt: Option<String>,
    /// What computes matrix products, in words.
    pub products: String,
    /// The products so far that cuBLASLt has no algorithm for on this GPU, and the own kernels compute, in words.
    pub without_algorithm: Option<String>,
    /// What computes attention, in words.
    pub attention: String,
    /// The attention so far that cuDNN failed to plan or to run, and the own kernels compute, in words.
    pub without_plan: Option<String>,
    /// The version of NVRTC; `None` before a kernel was needed.
    pub nvrtc: Option<String>,
    /// Units of kernels that were compiled.
    pub compiled: usize,
    /// Units of kernels that the cache on disk had.
    pub from_disk: usize,
    /// The time of the compilations.
    pub compile_time: Duration,
    /// Why the cache was not written, if so.
    pub cache_problem: Option<String>,
}

impl GpuInfo {
    /// How far results of GPUs are to be trusted, in words.
    pub const TRUST: &str = "experimental: checked on one NVIDIA H200, several GPUs only in emulation";
}

impl Gpu {
    /// The shapes of the matrix products so far.
    pub fn products(&self) -> Vec<oarlock_cuda::blas::Shape> {
        self.blas.shapes()
    }

    /// What was asked of the driver so far.
    pub fn counts(&self) -> oarlock_cuda::driver::Counts {
        self.context.counts()
    }

    /// What is known about it now.
    ///
    /// # Errors
    /// The driver's own.
    pub fn info(&self) -> Result<GpuInfo> {
        let (device, counts) = (self.context.device(), self.modules.counts());
        Ok(GpuInfo {
            name: device.name().map_err(failed)?,
            memory_bytes: device.memory_bytes().map_err(failed)?,
            capability: device.capability().map_err(failed)?,
            multiprocessors: device.multiprocessors().map_err(failed)?,
            driver: self.driver,
            cublas_lt: self.blas.version(),
            products: self.blas.describe(),
            without_algorithm: self.blas.lacks(),
            attention: self.attention.describe(),
            without_plan: self.attention.lacks(),
            nvrtc: self.modules.compiler_version(),
            compiled: counts.compiled,
            from_disk: counts.from_disk,
            compile_time: self.modules.compile_time(),
            cache_problem: self.modules.cache_problem(),
        })
    }
}
