//! What can go wrong in Oarlock above the tensors and the ranks. Parts that are built on this error make theirs one of it
//! themselves; those below it, which know nothing of it, are named here.

use std::path::{Path, PathBuf};

mod checkpoint;
mod loss_scale;
mod memory;
mod occupied;
mod weights;

pub use checkpoint::{CheckpointError, Missing, OtherBase, Problem};
pub use loss_scale::ScaleAtMinimum;
pub use memory::{Limit, NotEnoughMemory};
pub use occupied::Occupied;
pub use weights::{UnfitParameter, UnfitWeights};

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate. Its `Debug` form is its message, so that a `main` that returns it prints what a person can read.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// From the tensor crate.
    #[error(transparent)]
    Tensor(oarlock_tensor::Error),
    /// From between the ranks.
    #[error(transparent)]
    Comm(#[from] oarlock_comm::Error),
    /// From what makes batches of data, in its own words.
    #[error(transparent)]
    Data(Box<dyn std::error::Error + Send + Sync>),
    /// A setting outside of its range.
    #[error("{key}: {cause}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// What is wrong with it and what to do.
        cause: String,
    },
    /// From the logs.
    #[error(transparent)]
    Report(#[from] super::file_error::Error),
    /// A checkpoint that was not saved or cannot be loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file that cannot be read or written.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// What was attempted ("read", "create").
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's word.
        cause: std::io::Error,
    },
    /// A file whose content is not what it should be.
    #[error("{}: {problem}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A configuration with everything that is wrong in it, a line for each.
    #[error(transparent)]
    Config(#[from] oarlock_config::settings::Problems),
    /// A model that cannot be built or used as asked.
    #[error("{0}")]
    Model(String),
    /// Gradients that are not finite.
    #[error(
        "step {step}: the gradient is not finite, first in \"{parameter}\" of the unit \"{unit}\"; lower the learning rate, or look at the records of this step"
    )]
    NotFinite {
        /// The optimizer step, from 1.
        step: u64,
        /// The unit; empty outside of any.
        unit: String,
        /// The parameter.
        parameter: String,
    },
    /// A training run that would not fit into memory.
    #[error(transparent)]
    Memory(#[from] NotEnoughMemory),
    /// Ranks that were launched from code.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// A loss scale that cannot fall any further.
    #[error(transparent)]
    LossScale(#[from] ScaleAtMinimum),
    /// A folder that holds what a result would replace.
    #[error(transparent)]
    Occupied(#[from] Occupied),
    /// A run that would not compute what it is to compute: other settings or data than it began with, machines with other
    /// files. It ends so however often it is started.
    #[error("{0}")]
    Refused(String),
    /// Weights that are not finite, or would not be in the dtype that they are to have.
    #[error(transparent)]
    Weights(#[from] UnfitWeights),
    /// A misuse of the library.
    #[error("{0}")]
    Usage(String),
    /// An error of a program's own code, which came through a function of the library.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// A launch from code that failed. The rank that it names failed first; the others were told, and ended after it.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The function returned an error.
    #[error("rank {rank} failed: {error}")]
    Failed {
        /// The rank.
        rank: usize,
        /// What the function returned.
        error: Box<Error>,
    },
    /// The function panicked.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The rank.
        rank: usize,
        /// What it panicked with.
        message: String,
    },
    /// The process of a rank failed: by an error or a panic of the function, an exit code of its own, or a signal.
    #[error("rank {rank} failed: {cause}")]
    Process {
        /// The rank.
        rank: usize,
        /// What it said, or what was seen of it.
        cause: String,
    },
    /// The process of a rank ended well, but never was at the call that started it.
    #[error(
        "rank {rank} ended without coming to the call of spawn_processes at {call}: each rank runs the program again, with \
         the same arguments, and must come to that call as this process did; let nothing before it depend on the time, \
         on input or on files that the program changes"
    )]
    NeverCame {
        /// The rank.
        rank: usize,
        /// The call.
        call: String,
    },
    /// A signal to this process ended the ranks.
    #[error("signal {signal} ({name}) to this process ended the ranks", name = oarlock_comm::signal_name(*.signal).unwrap_or("without a name"))]
    Stopped {
        /// The signal.
        signal: i32,
    },
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::other(error)
    }
}

impl From<oarlock_tensor::Error> for Error {
    fn from(error: oarlock_tensor::Error) -> Error {
        match error {
            // An error of this crate that came through a hook is what it was.
            oarlock_tensor::Error::Hook(inner) => match inner.downcast::<Error>() {
                Ok(error) => *error,
                Err(inner) => Error::Tensor(oarlock_tensor::Error::Hook(inner)),
            },
            error => Error::Tensor(error),
        }
    }
}

impl Error {
    /// An error of a program's own code, or a message, for closures that the library calls:
    /// `file.parse().map_err(Error::other)?`.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Other(error.into())
    }

    /// An I/O error with its file.
    pub fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |cause| Error::Io { action, path, cause }
    }

    /// Where an error began that all ranks report alike.
    pub fn began_on(&self) -> Option<usize> {
        match self {
            Error::Checkpoint(
                CheckpointError::NotSaved { rank, .. }
                | CheckpointError::ModelNotSaved { rank, .. }
                | CheckpointError::NotLoaded { problem: Problem::Interrupted { rank, .. }, .. },
            ) => Some(*rank),
            _ => None,
        }
    }

    /// Whether the same command ends with this error again, whatever was transient about its first end.
    pub fn is_final(&self) -> bool {
        match self {
            Error::Refused(_) | Error::Setting { .. } => true,
            Error::Checkpoint(CheckpointError::NotLoaded { problem, .. }) => {
                !matches!(problem, Problem::Unreadable { .. } | Problem::Interrupted { .. })
            }
            _ => false,
        }
    }

    /// A bad file with its problem.
    pub fn bad_file(path: impl AsRef<Path>, problem: impl Into<String>) -> Error {
        Error::BadFile { path: path.as_ref().to_path_buf(), problem: problem.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_main_prints_is_the_message() {
        let error = Error::bad_file("config.json", "it has no hidden_size; add it");
        assert_eq!(format!("{error:?}"), "config.json: it has no hidden_size; add it");
        let read = || -> Result<Vec<u8>> { Ok(std::fs::read("/nowhere/rows")?) };
        assert!(matches!(read(), Err(Error::Other(_))));
        assert!(Error::other("the file holds no rows").to_string() == "the file holds no rows");
    }
}
