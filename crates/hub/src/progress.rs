//! What a caller is told while it waits.

use std::time::Duration;

use crate::error::Error;

/// Something that happened. Files are named by their paths in the repository.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'e> {
    /// A download begins.
    Begin {
        /// The file.
        path: &'e str,
        /// How long it will be, where the hub says so.
        size: Option<u64>,
        /// How much of it an earlier download has left here.
        present: u64,
    },
    /// More bytes of a file are on the disk.
    Bytes {
        /// The file.
        path: &'e str,
        /// How many came.
        n_bytes: u64,
    },
    /// What had come of a file is of no use; it begins anew.
    Restart {
        /// The file.
        path: &'e str,
        /// Why.
        why: &'static str,
    },
    /// A file is complete and in its place.
    Done {
        /// The file.
        path: &'e str,
    },
    /// A request failed and is repeated.
    Pause {
        /// After how long.
        pause: Duration,
        /// What went wrong.
        why: &'e Error,
    },
    /// Another process downloads the same file, and is waited for.
    Waiting {
        /// The file.
        path: &'e str,
    },
    /// Something that a user should know and that is no error.
    Note(&'e str),
}

/// What is called with every event, from several threads.
pub type Progress = dyn Fn(&Event<'_>) + Send + Sync;
