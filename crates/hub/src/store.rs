//! What a hub and the place for its files have in common: a list of files, and files that are got.

use std::path::PathBuf;

use crate::error::Error;
use crate::listing::{Entry, Listing};
use crate::names::{Repo, RepoPath};

/// The files of a model in a folder.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The folder that the files lie in, as others read it.
    pub folder: PathBuf,
    /// The commit that the files are of. On ModelScope, the revision.
    pub commit: String,
    /// The files that were asked for; the folder may have others.
    pub files: Vec<SnapshotFile>,
}

/// One file of a repository that is here.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    /// Its path in the repository, with slashes.
    pub path: String,
    /// What names its content: the sha256 of a large file, the hash of Git of a small one. Unknown where a copy lies here
    /// that huggingface_hub made without links.
    pub etag: Option<String>,
    /// Its length.
    pub n_bytes: u64,
    /// Where it lies.
    pub local: PathBuf,
}

/// A hub with the place to which its files go.
pub(crate) trait Store {
    /// The files of a repository at its revision.
    fn listing(&self, repo: &Repo) -> Result<Listing, Error>;

    /// Gets files of a list, some at once.
    fn fetch(&self, repo: &Repo, listing: &Listing, entries: Vec<Entry>) -> Result<Vec<SnapshotFile>, Error>;

    /// Gets one file.
    fn file(&self, repo: &Repo, path: &RepoPath) -> Result<PathBuf, Error>;

    /// Where the files of a list lie.
    fn folder(&self, repo: &Repo, listing: &Listing) -> PathBuf;
}
