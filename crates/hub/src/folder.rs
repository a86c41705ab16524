//! Files in a folder that a user names, with huggingface's notes on where each of them came from.
//!
//! ```text
//! FOLDER/{path}                                              the file itself
//! FOLDER/.cache/huggingface/download/{path}.metadata         commit, entity tag and time, a line each
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cache::{self, Cache, make_folder_of};
use crate::digest;
use crate::error::{At, Error};
use crate::file::{Known, Source, absent};
use crate::listing::{Entry, Listing};
use crate::locks::{Lock, Signs};
use crate::names::{self, Etag, Repo, RepoPath};
use crate::partial;
use crate::progress::Event;
use crate::reading;

/// The deepest folder that is looked into.
const MAX_DEPTH: usize = 64;

/// A folder, and the place of the notes on its files.
pub(crate) struct Folder {
    root: PathBuf,
    notes: PathBuf,
}

/// What a note says, if the file has not changed since.
struct Note {
    commit: String,
    etag: Option<Etag>,
    /// When it was made, in seconds.
    time: f64,
}

impl Folder {
    /// A folder with its notes where huggingface keeps them.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(crate) fn of_huggingface(root: &Path) -> Result<Folder, Error> {
        let state = root.join(".cache").join("huggingface");
        fs::create_dir_all(&state).at(&state)?;
        cache::tag(&state);
        let ignore = state.join(".gitignore");
        if !ignore.exists() {
            oarlock_files::replace(&ignore, "*").at(&ignore)?;
        }
        Ok(Folder { root: root.to_owned(), notes: state.join("download") })
    }

    /// A folder with its notes elsewhere.
    pub(crate) fn with_notes(root: PathBuf, notes: PathBuf) -> Folder {
        Folder { root, notes }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn place(&self, path: &RepoPath) -> PathBuf {
        path.below(&self.root)
    }

    /// Where partial downloads and locks of a file lie.
    pub(crate) fn work(&self, path: &RepoPath) -> PathBuf {
        let note = path.below(&self.notes);
        note.parent().map_or_else(|| self.notes.clone(), Path::to_owned)
    }

    fn note_path(&self, path: &RepoPath) -> PathBuf {
        path.below(&self.notes).with_file_name(format!("{}.metadata", path.file_name()))
    }

    /// The note on a file that is there and has not been changed since the note was made.
    fn note(&self, path: &RepoPath) -> Option<Note> {
        let text = reading::text(&self.note_path(path), 4096).ok()?;
        let mut lines = text.lines().map(str::trim);
        let (commit, etag, time) = (lines.next()?, lines.next()?, lines.next()?);
        let time: f64 = time.parse().ok()?;
        let changed = fs::metadata(self.place(path)).ok().filter(fs::Metadata::is_file)?.modified().ok()?;
        let changed = changed.duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
        // Clocks of file systems are coarse.
        (changed - 1.0 <= time).then(|| Note { commit: commit.to_owned(), etag: Etag::of(etag), time })
    }

    /// Notes where a file came from.
    pub(crate) fn write_note(&self, path: &RepoPath, commit: &str, etag: &Etag) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        let note = self.note_path(path);
        make_folder_of(&note)?;
        oarlock_files::replace(&note, format!("{commit}\n{etag}\n{now}\n")).at(&note)
    }

    /// Whether the file that is there has the content of an entity tag: by its note, or by its hash where that is a sha256.
    pub(crate) fn is_current(&self, path: &RepoPath, etag: &Etag) -> bool {
        match self.note(path) {
            Some(note) => note.etag.as_ref() == Some(etag),
            None if etag.is_sha256() => reading::open(&self.place(path))
                .and_then(|mut file| digest::is_content_of(&mut file, etag))
                .unwrap_or(false),
            None => false,
        }
    }

    /// The files that the notes know, of the commit of the latest one.
    pub(crate) fn listing(&self) -> Option<Listing> {
        let mut found = Vec::new();
        self.walk("", 0, &mut found);
        let (_, commit) =
            found.iter().map(|(_, note)| (note.time, &note.commit)).max_by(|a, b| a.0.total_cmp(&b.0))?;
        let commit = commit.clone();
        let of_commit = found.into_iter().filter(|(_, note)| note.commit == commit);
        let entries = of_commit.filter_map(|(path, note)| {
            let size = fs::metadata(self.place(&path)).ok()?.len();
            Some(Entry { path, size, etag: note.etag })
        });
        let entries = entries.collect();
        Some(Listing { commit, entries, is_whole: false })
    }

    fn walk(&self, prefix: &str, depth: usize, found: &mut Vec<(RepoPath, Note)>) {
        let Ok(entries) = fs::read_dir(self.notes.join(prefix)) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && depth < MAX_DEPTH {
                self.walk(&path, depth + 1, found);
            } else if let Some(path) = path.strip_suffix(".metadata").and_then(|path| RepoPath::of(path).ok())
                && let Some(note) = self.note(&path)
            {
                found.push((path, note));
            }
        }
    }
}

impl Source<'_> {
    /// A file at the revision of the repository, in a folder of the user's.
    ///
    /// # Errors
    /// It is not there, or cannot be had and is not in the folder.
    pub(crate) fn file_to(&self, repo: &Repo, path: &RepoPath, folder: &Folder) -> Result<PathBuf, Error> {
        let place = folder.place(path);
        let there = || place.is_file().then(|| place.clone());
        let is_of_commit = || folder.note(path).is_some_and(|note| note.commit == repo.revision);
        if names::is_commit(&repo.revision) && is_of_commit() {
            return Ok(place);
        }
        if self.is_offline {
            return there().ok_or_else(|| self.offline(repo, path.as_str()));
        }
        let mut metadata = match self.metadata(repo, path, there)? {
            Known::Cached(found) => return Ok(found),
            Known::Now(metadata) => metadata,
            Known::Absent(..) => return Err(absent(repo, path)),
        };
        if !folder.is_current(path, &metadata.etag) {
            let cached = Cache::of(self.environment, repo).pointer(&metadata.commit, path);
            make_folder_of(&place)?;
            if cached.is_file() {
                cache::copy(&cached, &place)?;
            } else {
                let work = folder.work(path);
                fs::create_dir_all(&work).at(&work)?;
                let signs = Signs { folder: &work, begin: metadata.etag.as_str() };
                let lock = work.join(format!("{}.lock", path.file_name()));
                let _lock = Lock::wait(&lock, &signs, path.as_str(), self.progress);
                if !folder.is_current(path, &metadata.etag) {
                    let partial = self.download(repo, path, &mut metadata, &work)?;
                    partial.publish(&place)?;
                    partial::clean(&work, &metadata.etag);
                    (self.progress)(&Event::Done { path: path.as_str() });
                }
            }
        }
        folder.write_note(path, &metadata.commit, &metadata.etag)?;
        Ok(place)
    }
}
