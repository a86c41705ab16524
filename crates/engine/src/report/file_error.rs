//! What a report says of a file that could not be read or written.

use std::io;
use std::path::{Path, PathBuf};

/// A file that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} `{}`: {source}{}", path.display(), advice(source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The content is not what this program writes.
    #[error("`{}` is not a {what}: {cause}; remove the file, or the checkpoint that holds it", path.display())]
    Content {
        /// What was expected.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
}

/// The result of a report.
pub type Result<T> = std::result::Result<T, Error>;

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "; free some space, then run the same command again: it resumes",
        io::ErrorKind::PermissionDenied => "; choose another output_dir or change its permissions",
        _ => "",
    }
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}
