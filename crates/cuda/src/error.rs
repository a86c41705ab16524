//! What can go wrong between a kernel's source and its machine code.

use std::path::PathBuf;

/// The error type of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no NVRTC.
    #[error(
        "libnvrtc, the compiler of CUDA kernels, was not found; looked in: {}. Install it with `pip install \
         nvidia-cuda-nvrtc` into the active Python, or install the CUDA toolkit and set CUDA_HOME to its folder",
        .looked_in.join(", ")
    )]
    NoNvrtc {
        /// The places.
        looked_in: Vec<String>,
    },
    /// The file is there and cannot be used.
    #[error("{} cannot be loaded as libnvrtc: {reason}. Install another version of it", .file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// What the loader said.
        reason: String,
    },
    /// The compiler refused a source.
    #[error("NVRTC {version} does not compile {unit} for {arch}:\n{log}")]
    Compile {
        /// The version of the compiler.
        version: String,
        /// The file, with its macros.
        unit: String,
        /// The architecture.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// A call of the compiler failed.
    #[error("{call} of NVRTC {version} failed: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// The version of the compiler.
        version: String,
        /// Its name of the error.
        reason: String,
    },
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
