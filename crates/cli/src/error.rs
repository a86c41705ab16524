//! What can go wrong in the program beyond the library.

use std::path::Path;

use crate::import::ImportError;
use crate::launch::agents::AgentsError;
use crate::plots::PlotError;

/// The result of an operation of the program.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// From the library.
    #[error(transparent)]
    Library(oarlock::Error),
    /// From between the machines.
    #[error(transparent)]
    Agents(AgentsError),
    /// Another program's checkpoint that was refused.
    #[error(transparent)]
    Import(ImportError),
    /// A picture that could not be drawn.
    #[error(transparent)]
    Plot(PlotError),
    /// A command that cannot be run as it was called.
    #[error("{0}")]
    Usage(String),
}

impl<E: Into<oarlock::Error>> From<E> for Error {
    fn from(error: E) -> Error {
        Error::Library(error.into())
    }
}

impl From<AgentsError> for Error {
    fn from(error: AgentsError) -> Error {
        Error::Agents(error)
    }
}

impl From<ImportError> for Error {
    fn from(error: ImportError) -> Error {
        Error::Import(error)
    }
}

impl From<PlotError> for Error {
    fn from(error: PlotError) -> Error {
        Error::Plot(error)
    }
}

impl Error {
    /// An I/O error with its file.
    pub fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Error {
        let library = oarlock::Error::io(action, path);
        move |cause| Error::Library(library(cause))
    }
}
