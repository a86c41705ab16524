//! What can go wrong in kernels, ops and tapes: one type, so that an error stays what it is on its way up.

use crate::dtype::DType;

/// The result of a kernel or of a tensor operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a kernel or of a tensor operation. Each variant says which operation, what it expected and what it got.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Shapes that do not fit an operation.
    #[error("{op}: expected {expected}, got {got}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// What it takes.
        expected: String,
        /// What it was given.
        got: String,
    },
    /// An element type that an operation does not take.
    #[error("{op}: expected {expected}, got {got}")]
    DType {
        /// The operation.
        op: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What it was given.
        got: DType,
    },
    /// A token id, label or position outside its range.
    #[error("{op}: index {index} at position {position} is outside 0..{bound}")]
    Index {
        /// The operation.
        op: &'static str,
        /// The offending value.
        index: i64,
        /// Where it stands in the input.
        position: usize,
        /// The exclusive upper bound.
        bound: usize,
    },
    /// Memory that could not be had.
    #[error("cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// The bytes asked for.
        bytes: usize,
        /// What they were for.
        what: &'static str,
    },
    /// A thread pool that could not be started.
    #[error("cannot start {n} threads: {cause}")]
    Threads {
        /// The threads asked for.
        n: usize,
        /// The operating system's word.
        cause: String,
    },
    /// What a unit's hook or a parameter's home met, for whoever installed it to take out again.
    #[error("{0}")]
    Hook(Box<dyn std::error::Error + Send + Sync>),
    /// What a GPU or one of its libraries met.
    #[error("{0}")]
    Gpu(Box<dyn std::error::Error + Send + Sync>),
    /// Values that a dry device does not have.
    #[error(
        "a dry device holds no values: it only counts memory and work; ask Device::is_dry before looking at them"
    )]
    Dry,
    /// What a launch met that ran after the op that made it had returned.
    #[error("{op}, which ran after it was called: {cause}")]
    Launch {
        /// The op.
        op: &'static str,
        /// What it met.
        cause: Box<Error>,
    },
    /// A misuse of the tape or of a parameter.
    #[error("{0}")]
    Usage(String),
}
