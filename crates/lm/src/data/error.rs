//! What can go wrong between a text file and a batch of tokens.

use std::io;
use std::path::{Path, PathBuf};

/// The result of a data operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the data module. Each says what came, what was expected and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder that cannot be read.
    #[error("cannot read {path}: {cause}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's word.
        cause: io::Error,
    },
    /// A file that cannot be written; nothing half-written is left behind.
    #[error("cannot write {path}: {cause}; {remedy}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's word.
        cause: io::Error,
        /// What to do about it.
        remedy: String,
    },
    /// A record that cannot be used.
    #[error("{path}:{line}: {cause}; {remedy}", path = .path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1 (in a Parquet file the row).
        line: u64,
        /// What is wrong with it.
        cause: String,
        /// What to do about it.
        remedy: String,
    },
    /// A file that is not of the format that its name promises.
    #[error("{path}: {cause}; {remedy}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
        /// What to do about it.
        remedy: String,
    },
    /// A data set name that is neither defined nor a path.
    #[error("Undefined dataset {name} in dataset_info.json.{hint}")]
    UndefinedDataset {
        /// The name.
        name: String,
        /// The nearest defined names, or why there are none.
        hint: String,
    },
    /// A data set of a hub whose files are not here.
    #[error(
        "dataset {name} lies on a hub ({key}: {address}), and the cache does not have its files; a training run fetches them"
    )]
    NotFetched {
        /// The data set.
        name: String,
        /// The key that says so.
        key: String,
        /// The hub's name for it.
        address: String,
    },
    /// A data set that lies where nothing is fetched from.
    #[error(
        "dataset {name} is remote ({key}: {address}), and nothing is downloaded here; download it first and give its \
         file or folder in file_name"
    )]
    Remote {
        /// The data set.
        name: String,
        /// The key that says so.
        key: String,
        /// The hub's name for it.
        address: String,
    },
    /// An entry of `dataset_info.json` that cannot be used.
    #[error("dataset {name} in {path}: {cause}; {remedy}", path = .path.display())]
    Entry {
        /// The data set.
        name: String,
        /// The `dataset_info.json`.
        path: PathBuf,
        /// What is wrong with the entry.
        cause: String,
        /// What to do about it.
        remedy: String,
    },
    /// A tokenizer that cannot be loaded, used or trained.
    #[error("tokenizer {path}: {cause}", path = .path.display())]
    Tokenizer {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// A chat template that is missing or broken, or a conversation that it does not render.
    #[error("{path}: {cause}", path = .path.display())]
    Template {
        /// The file that holds the template, or the folder that holds none.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// A chat template that takes steps or memory without end.
    #[error("{path}: {cause}", path = .path.display())]
    EndlessTemplate {
        /// The file that holds the template.
        path: PathBuf,
        /// What grows.
        cause: String,
    },
    /// A token cache that is cut short, altered or of another version.
    #[error("token cache {path}: {cause}; delete it, and it will be built again", path = .path.display())]
    Cache {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// No records, or too few for what was asked.
    #[error("{0}")]
    TooLittle(String),
    /// A setting outside its range.
    #[error("{key}: {cause}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// What is wrong with it and what to do.
        cause: String,
    },
    /// Threads that could not be started.
    #[error(
        "cannot start the threads that encode the records: {0}; raise the limit of processes (`ulimit -u`), or give the \
         process more memory"
    )]
    Threads(String),
    /// The background thread that prepares batches is gone.
    #[error("the thread that prepares batches stopped: {0}")]
    Loader(String),
}

impl Error {
    pub(crate) fn read(path: &Path, cause: io::Error) -> Error {
        Error::Read { path: path.into(), cause }
    }

    pub(crate) fn record(path: &Path, line: u64, cause: impl Into<String>, remedy: &str) -> Error {
        Error::Record { path: path.into(), line, cause: cause.into(), remedy: remedy.into() }
    }

    pub(crate) fn file(path: &Path, cause: impl Into<String>, remedy: &str) -> Error {
        Error::File { path: path.into(), cause: cause.into(), remedy: remedy.into() }
    }

    /// A failed write, with advice that fits its cause.
    pub(crate) fn write(path: &Path, cause: io::Error) -> Error {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new(".")).display();
        let remedy = match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("make room in {folder} or choose a folder on another disk")
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                format!("make {folder} writable or choose another folder")
            }
            io::ErrorKind::AlreadyExists => "it is not a folder: choose another name".to_owned(),
            _ => format!("check that {folder} is a folder on a healthy disk"),
        };
        Error::Write { path: path.into(), cause, remedy }
    }
}

impl From<Error> for oarlock_engine::Error {
    fn from(error: Error) -> oarlock_engine::Error {
        match error {
            Error::Setting { key, cause } => oarlock_engine::Error::Setting { key, cause },
            error => oarlock_engine::Error::Data(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_names_the_folder() {
        let message =
            |path: &str, kind: io::ErrorKind| Error::write(Path::new(path), kind.into()).to_string();
        assert!(
            message("cache", io::ErrorKind::StorageFull)
                .ends_with("make room in . or choose a folder on another disk")
        );
        assert!(
            message("a/b", io::ErrorKind::PermissionDenied)
                .ends_with("make a writable or choose another folder")
        );
        assert!(message("a/b", io::ErrorKind::Other).ends_with("check that a is a folder on a healthy disk"));
        assert!(
            message("text.jsonl", io::ErrorKind::AlreadyExists)
                .ends_with("it is not a folder: choose another name")
        );
    }
}
