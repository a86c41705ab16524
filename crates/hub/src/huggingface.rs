//! Hugging Face with its cache, or with a folder that a user names.

use std::collections::HashSet;
use std::fs::DirEntry;
use std::path::PathBuf;

use crate::cache::Cache;
use crate::error::Error;
use crate::file::Source;
use crate::folder::Folder;
use crate::listing::{Entry, Listing};
use crate::names::{Etag, Repo, RepoPath};
use crate::store::{SnapshotFile, Store};
use crate::{parallel, space};

/// The hub and the place for its files.
pub(crate) struct HuggingFace<'h> {
    source: Source<'h>,
    /// The cache, if there is none.
    folder: Option<Folder>,
}

impl<'h> HuggingFace<'h> {
    pub(crate) fn in_cache(source: Source<'h>) -> HuggingFace<'h> {
        HuggingFace { source, folder: None }
    }

    pub(crate) fn to_folder(source: Source<'h>, folder: Folder) -> HuggingFace<'h> {
        HuggingFace { source, folder: Some(folder) }
    }

    /// Whether all that is missing fits on the disk, before the first of it comes.
    fn check_space(&self, repo: &Repo, entries: &[Entry]) -> Result<(), Error> {
        let cache = Cache::of(self.source.environment, repo);
        let is_missing = |entry: &&Entry| match &self.folder {
            Some(folder) => !folder.place(&entry.path).is_file(),
            None => {
                let has_blob = entry.etag.as_ref().is_some_and(|etag| cache.blob(etag).is_file());
                !has_blob && !cache.pointer(&repo.revision, &entry.path).is_file()
            }
        };
        let needs =
            entries.iter().filter(is_missing).fold(0_u64, |sum, entry| sum.saturating_add(entry.size));
        let root = self.folder.as_ref().map_or(cache.root(), Folder::root);
        match needs.saturating_sub(partials(&cache, entries)) {
            0 => Ok(()),
            needs => space::check(root, needs),
        }
    }
}

impl Store for HuggingFace<'_> {
    fn listing(&self, repo: &Repo) -> Result<Listing, Error> {
        let of_folder = || self.folder.as_ref().and_then(Folder::listing);
        self.source.listing(repo, &of_folder)
    }

    fn fetch(&self, repo: &Repo, listing: &Listing, entries: Vec<Entry>) -> Result<Vec<SnapshotFile>, Error> {
        let at_commit = Repo { revision: listing.commit.clone(), ..repo.clone() };
        self.check_space(&at_commit, &entries)?;
        parallel::each(&entries, |entry| {
            let local = self.file(&at_commit, &entry.path)?;
            let etag = entry.etag.as_ref().map(ToString::to_string);
            Ok(SnapshotFile { path: entry.path.to_string(), etag, n_bytes: entry.size, local })
        })
    }

    fn file(&self, repo: &Repo, path: &RepoPath) -> Result<PathBuf, Error> {
        match &self.folder {
            Some(folder) => self.source.file_to(repo, path, folder),
            None => self.source.file(repo, path),
        }
    }

    fn folder(&self, repo: &Repo, listing: &Listing) -> PathBuf {
        match &self.folder {
            Some(folder) => folder.root().to_owned(),
            None => Cache::of(self.source.environment, repo).snapshot(&listing.commit),
        }
    }
}

/// How many bytes of the files lie in the cache already, in downloads that were broken off.
fn partials(cache: &Cache, entries: &[Entry]) -> u64 {
    let Ok(blobs) = std::fs::read_dir(cache.blobs()) else { return 0 };
    let etags: HashSet<&str> =
        entries.iter().filter_map(|entry| entry.etag.as_ref()).map(Etag::as_str).collect();
    let is_of_ours = |found: &DirEntry| {
        let name = found.file_name();
        name.to_string_lossy().split_once(".oarlock-").is_some_and(|(etag, _)| etags.contains(etag))
    };
    let lengths = blobs.flatten().filter(is_of_ours).filter_map(|found| found.metadata().ok());
    lengths.map(|found| found.len()).fold(0, u64::saturating_add)
}
