//! What can go wrong in the program beyond the library. Its parts make their errors one of it themselves.

use std::path::Path;

/// The result of an operation of the program.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// From the library.
    #[error(transparent)]
    Library(oarlock::Error),
    /// From a part of the program that has errors of its own.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// A command that cannot be run as it was called.
    #[error("{0}")]
    Usage(String),
}

impl<E: Into<oarlock::Error>> From<E> for Error {
    fn from(error: E) -> Error {
        Error::Library(error.into())
    }
}

impl Error {
    /// An I/O error with its file.
    pub fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Error {
        let library = oarlock::Error::io(action, path);
        move |cause| Error::Library(library(cause))
    }
}
