//! The cache that huggingface_hub and transformers share: where everything of one repository lies in it.
//!
//! ```text
//! CACHEDIR.TAG
//! .locks/models--owner--name/{etag}.lock
//! models--owner--name/refs/main                     the commit, without a newline
//! models--owner--name/blobs/{etag}                  the content, or a link to the store below
//! models--owner--name/snapshots/{commit}/{path}     a relative link to the blob
//! models--owner--name/.no_exist/{commit}/{path}     empty: the commit has no such file
//! models--owner--name/trees/{commit}.json           the list of all files
//! blobs/ab/{hash}                                   the store of huggingface_hub 2, which is read and never written
//! ```
//!
//! A blob may be a link into that store, so nothing is ever opened for writing under its name: it is replaced by a rename.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::environment::Environment;
use crate::error::{At, Error};
use crate::names::{self, Etag, Repo, RepoPath};
use crate::reading;

/// The text by which programs for backups know a cache, as huggingface_hub writes it.
pub(crate) const CACHEDIR_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This file is a cache directory tag created by huggingface_hub.\n\
    # For information about cache directory tags, see:\n\
    #\thttps://bford.info/cachedir/\n";

/// The most files of a snapshot that are listed, and the deepest folder.
const MAX_FILES: usize = 1_000_000;
const MAX_DEPTH: usize = 64;

/// The part of a cache that belongs to one repository.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
    folder: PathBuf,
    locks: PathBuf,
    has_links: bool,
}

impl Cache {
    pub(crate) fn of(environment: &Environment, repo: &Repo) -> Cache {
        let root = environment.cache.clone();
        let name = repo.folder_name();
        let (folder, locks) = (root.join(&name), root.join(".locks").join(&name));
        Cache { root, folder, locks, has_links: !environment.no_symlinks }
    }

    /// The folder of the cache itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    pub(crate) fn blob(&self, etag: &Etag) -> PathBuf {
        self.blobs().join(etag.as_str())
    }

    pub(crate) fn lock(&self, etag: &Etag) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(crate) fn pointer(&self, commit: &str, path: &RepoPath) -> PathBuf {
        path.below(&self.snapshot(commit))
    }

    pub(crate) fn tree(&self, commit: &str) -> PathBuf {
        self.folder.join("trees").join(format!("{commit}.json"))
    }

    fn no_exist(&self, commit: &str, path: &RepoPath) -> PathBuf {
        path.below(&self.folder.join(".no_exist").join(commit))
    }

    /// The commit that a revision named when the hub was last asked, or is.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if names::is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = reading::text(&self.folder.join("refs").join(revision), 100).ok()?;
        let commit = text.trim();
        names::is_commit(commit).then(|| commit.to_owned())
    }

    /// Remembers which commit a revision names. Best effort, where all is there already: the cache may be read-only.
    pub(crate) fn remember(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if names::is_commit(revision) || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        make_folder_of(&path)?;
        oarlock_files::replace(&path, commit).at(&path)
    }

    pub(crate) fn is_known_absent(&self, commit: &str, path: &RepoPath) -> bool {
        self.no_exist(commit, path).is_file()
    }

    /// Remembers that a commit has no such file; a cache that cannot be written only forgets it.
    pub(crate) fn mark_absent(&self, commit: &str, path: &RepoPath) {
        let path = self.no_exist(commit, path);
        if make_folder_of(&path).is_ok() && !path.exists() {
            let _ = oarlock_files::replace(&path, "");
        }
    }

    /// Makes the folders that a new blob needs.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        let blobs = self.blobs();
        fs::create_dir_all(&blobs).at(&blobs)?;
        tag(&self.root);
        Ok(())
    }

    /// Puts a blob into a snapshot: by a link, or where links are off or impossible by moving a new blob and copying an old one.
    pub(crate) fn place(
        &self,
        etag: &Etag,
        commit: &str,
        path: &RepoPath,
        is_new: bool,
    ) -> Result<(), Error> {
        let (blob, pointer) = (self.blob(etag), self.pointer(commit, path));
        make_folder_of(&pointer)?;
        if self.has_links {
            let up = "../".repeat(2 + path.depth());
            let target = PathBuf::from(format!("{up}blobs/{etag}"));
            match oarlock_files::link(&target, &pointer) {
                Err(error) if is_without_links(&error) => {}
                linked => return linked.at(&pointer),
            }
        }
        let is_plain = fs::symlink_metadata(&blob).is_ok_and(|found| found.is_file());
        match is_new && is_plain {
            true => fs::rename(&blob, &pointer).at(&pointer),
            false => copy(&blob, &pointer),
        }
    }

    /// The files of a snapshot that are there, with the entity tags that their links name.
    pub(crate) fn files_of(&self, commit: &str) -> Vec<(RepoPath, Option<Etag>, u64)> {
        let mut found = Vec::new();
        walk(&self.snapshot(commit), "", 0, &mut found);
        found.sort_by(|one, other| one.0.cmp(&other.0));
        found
    }
}

fn walk(folder: &Path, prefix: &str, depth: usize, found: &mut Vec<(RepoPath, Option<Etag>, u64)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && depth < MAX_DEPTH {
            walk(&entry.path(), &path, depth + 1, found);
            continue;
        }
        // A link whose blob is gone leads to nothing.
        let Some(length) =
            fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file).map(|file| file.len())
        else {
            continue;
        };
        if let (Ok(path), true) = (RepoPath::of(&path), found.len() < MAX_FILES) {
            let target = fs::read_link(entry.path()).ok();
            let etag = target.as_deref().and_then(Path::file_name).and_then(|name| Etag::of(name.to_str()?));
            found.push((path, etag, length));
        }
    }
}

/// Tells programs for backups that a folder is a cache. A folder that cannot be written has it or does without.
pub(crate) fn tag(folder: &Path) {
    let path = folder.join("CACHEDIR.TAG");
    if !path.exists() {
        let _ = oarlock_files::replace(&path, CACHEDIR_TAG);
    }
}

pub(crate) fn make_folder_of(path: &Path) -> Result<(), Error> {
    match path.parent() {
        Some(folder) => fs::create_dir_all(folder).at(folder),
        None => Ok(()),
    }
}

/// Copies a file, through the links of a cache, in the place of whatever has the name.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let mut source = reading::open(from).at(from)?;
    let mut copy = oarlock_files::Replacement::begin(to).at(to)?;
    io::copy(&mut source, &mut copy).at(to)?;
    copy.publish().at(to)
}

fn is_without_links(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, Unsupported};
    matches!(error.kind(), PermissionDenied | Unsupported) || error.raw_os_error() == Some(95)
}
