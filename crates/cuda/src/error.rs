//! What can go wrong between a kernel's source and its results.

use std::path::PathBuf;

use crate::driver::DriverError;
use crate::libraries::{Cuda, Library};
use crate::nccl::NcclError;

/// The error type of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This program opens no libraries at all.
    #[error(
        "{library}, cannot be opened: this program is static and opens no libraries, so it computes on CPUs alone. Use a build \
         for glibc, such as the other wheel"
    )]
    Static {
        /// Which one was asked for.
        library: Library,
    },
    /// A library is nowhere.
    #[error("{library}, was not found; looked in: {}. {}", .looked_in.join(", "), .library.remedy(*.cuda))]
    NoLibrary {
        /// Which one.
        library: Library,
        /// The places.
        looked_in: Vec<String>,
        /// What the driver supports, where that is known.
        cuda: Option<Cuda>,
    },
    /// The file is there, and the driver is too old for it.
    #[error(
        "{} is of CUDA {version}, and the driver of the GPU supports CUDA up to {}.{}: `{}` gets one that fits, or update \
         the driver", .file.display(), .cuda.0, .cuda.1, .library.command(Some(*.cuda))
    )]
    TooNew {
        /// Which library it is.
        library: Library,
        /// The file.
        file: PathBuf,
        /// Its version.
        version: String,
        /// What the driver supports.
        cuda: Cuda,
    },
    /// The compiler is older than the GPU.
    #[error(
        "NVRTC {version} ({}) does not know {arch}, the architecture of this GPU: install {help}", .file.display()
    )]
    UnknownArch {
        /// The version of the compiler.
        version: String,
        /// Its file.
        file: PathBuf,
        /// The architecture.
        arch: String,
        /// What knows it, and the command that gets that.
        help: String,
    },
    /// The driver refused what every compiler that was found has made.
    #[error(
        "the driver, which supports CUDA up to {}.{}, refuses the machine code of NVRTC {version} ({}) for {arch}: {reason}",
        .cuda.0, .cuda.1, .file.display()
    )]
    Refused {
        /// The version of the first compiler.
        version: String,
        /// Its file.
        file: PathBuf,
        /// The architecture.
        arch: String,
        /// What the driver supports.
        cuda: Cuda,
        /// What the driver said.
        reason: Box<DriverError>,
    },
    /// The file is there and cannot be used.
    #[error("{} cannot be loaded as {library}: {reason}. Install another version of it", .file.display())]
    Unusable {
        /// Which library it should be.
        library: Library,
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
    /// A call of the driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// There is no such device.
    #[error(
        "there is no GPU {wanted}: this process sees {count}. CUDA_VISIBLE_DEVICES selects which ones it sees"
    )]
    NoDevice {
        /// The number that was asked for.
        wanted: usize,
        /// How many there are.
        count: usize,
    },
    /// The kernels use what the device does not have.
    #[error(
        "{name} has compute capability {}.{}, and the kernels need 8.0 (A100, RTX 30) or a newer one",
        .capability.0, .capability.1
    )]
    OldDevice {
        /// The model.
        name: String,
        /// What it has.
        capability: (u32, u32),
    },
    /// A launch does not fit its kernel; nothing was launched.
    #[error("{kernel}: {reason}")]
    Launch {
        /// The name of the instance.
        kernel: String,
        /// What does not fit.
        reason: String,
    },
    /// A launch needs more than this GPU has; nothing was launched.
    #[error("{kernel}: {reason}")]
    TooLarge {
        /// The name of the instance.
        kernel: String,
        /// What it needs, and what there is.
        reason: String,
    },
    /// A stretch of memory that is not inside its memory, or begins where its elements cannot.
    #[error("bytes {start}..{end} are not {what} in {bytes} bytes of memory")]
    Range {
        /// The first byte.
        start: usize,
        /// The byte behind the last one.
        end: usize,
        /// What it should be.
        what: String,
        /// Bytes of the memory.
        bytes: usize,
    },
    /// The two sides of a copy differ in length.
    #[error("a copy of {from} bytes to {to} bytes")]
    Lengths {
        /// Bytes to read.
        from: usize,
        /// Bytes to write.
        to: usize,
    },
    /// Things of two contexts in one call.
    #[error("{what} belongs to another GPU's context than the stream")]
    OtherContext {
        /// What was passed.
        what: &'static str,
    },
    /// A matrix product that has no meaning.
    #[error("a matrix product {product}: {reason}")]
    Product {
        /// What was asked for.
        product: String,
        /// What is wrong with it.
        reason: String,
    },
    /// cuBLASLt has no algorithm for a product.
    #[error(
        "cuBLASLt {version} has no algorithm for the product {product} with {workspace_bytes} bytes of workspace"
    )]
    NoAlgorithm {
        /// The version of the library.
        version: String,
        /// What was asked for.
        product: String,
        /// What it could use.
        workspace_bytes: usize,
    },
    /// A table of algorithms that cannot be read.
    #[error("{file}, line {line}: {reason}")]
    Table {
        /// The file.
        file: String,
        /// The line; 0 for the file itself.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A call of cuBLASLt failed.
    #[error("{call} of cuBLASLt {version} failed: {status}: {text}")]
    Blas {
        /// The function.
        call: &'static str,
        /// The version of the library.
        version: String,
        /// Its name of the error.
        status: String,
        /// What it says about it.
        text: String,
    },
    /// An attention that cuDNN cannot be asked for.
    #[error("attention by cuDNN: {reason}")]
    Attention {
        /// What does not fit.
        reason: String,
    },
    /// cuDNN has no deterministic plan for an attention.
    #[error("cuDNN {version} has no deterministic plan for {what} with {workspace_bytes} bytes of workspace")]
    NoPlan {
        /// The version of the library.
        version: String,
        /// What was asked for.
        what: String,
        /// What it could use.
        workspace_bytes: usize,
    },
    /// A call of cuDNN failed.
    #[error("{call} of cuDNN {version} failed: {status}: {text}")]
    Cudnn {
        /// The function.
        call: &'static str,
        /// The version of the library.
        version: String,
        /// Its name of the error.
        status: String,
        /// What it says about it.
        text: String,
    },
    /// Collectives or messages that have no meaning; NCCL did not see them.
    #[error("{call}: {reason}")]
    Collective {
        /// What was asked for.
        call: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// What is not a unique id of a communicator.
    #[error("{reason}: a unique id is 128 bytes, as 256 hexadecimal digits")]
    UniqueId {
        /// What is wrong with it.
        reason: String,
    },
    /// A call of NCCL failed, or a communicator did; that is aborted then.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// Other ranks did not come in time. The communicator is aborted.
    #[error(
        "rank {rank} of {world} waited {seconds} s for {what}: another rank ended, hangs, or does something else. The \
         communicator is aborted"
    )]
    Late {
        /// What did not come.
        what: &'static str,
        /// Who waited.
        rank: usize,
        /// Ranks of the communicator.
        world: usize,
        /// How long it waited.
        seconds: f64,
    },
    /// The communicator was aborted before.
    #[error("rank {rank} of {world}: the communicator was aborted before")]
    Aborted {
        /// Whose.
        rank: usize,
        /// Ranks of the communicator.
        world: usize,
    },
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
