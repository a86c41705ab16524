//! ModelScope: its lists, its addresses, and its cache of plain files.
//!
//! ```text
//! {cache}/models/{owner}--{name}/snapshots/{revision}/{path}      the file itself
//! {cache}/models/{owner}--{name}/.oarlock/{revision}/…            our notes and partial downloads
//! {cache}/models/{owner}/{name, "." as "___"}/{path}              older programs, still used if it is there
//! {cache}/hub/models/{owner}/{name, "." as "___"}/{path}
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::address::{encoded, shown};
use crate::cache::make_folder_of;
use crate::error::{At, Error};
use crate::file::{Source, absent};
use crate::folder::Folder;
use crate::listing::{Entry, Listing};
use crate::locks::{Lock, Signs};
use crate::metadata::Metadata;
use crate::names::{Etag, Kind, Repo, RepoPath};
use crate::progress::Event;
use crate::refusal::Subject;
use crate::store::{SnapshotFile, Store};
use crate::transfer::{self, Outcome};
use crate::{api, parallel, partial, pauses, space};

/// Where the server cuts a list of a model, without a word.
const CUT: usize = 3000;

/// The files of a page of a data set, and the most requests for one list.
const PAGE: usize = 200;
const MAX_REQUESTS: usize = 5000;

/// The deepest folder that is looked into.
const MAX_DEPTH: usize = 64;

/// ModelScope and the place for its files.
pub(crate) struct ModelScope<'h> {
    source: Source<'h>,
    folder: Folder,
}

impl<'h> ModelScope<'h> {
    pub(crate) fn in_cache(source: Source<'h>, repo: &Repo) -> ModelScope<'h> {
        let cache = source.environment.modelscope_cache.join(repo.kind.plural());
        let own = cache.join(repo.id.replace('/', "--"));
        let new = own.join("snapshots").join(&repo.revision);
        let notes = own.join(".oarlock").join(&repo.revision);
        let root = if new.is_dir() { None } else { old_folder(&source, repo) };
        ModelScope { source, folder: Folder::with_notes(root.unwrap_or(new), notes) }
    }

    pub(crate) fn to_folder(source: Source<'h>, folder: Folder) -> ModelScope<'h> {
        ModelScope { source, folder }
    }

    fn list_now(&self, repo: &Repo) -> Result<Listing, Error> {
        let mut found = BTreeMap::new();
        match repo.kind {
            Kind::Model => self.list_model(repo, &mut found)?,
            Kind::Dataset => self.list_dataset(repo, &mut found)?,
        }
        Ok(Listing { commit: repo.revision.clone(), entries: found.into_values().collect(), is_whole: true })
    }

    /// The whole tree at once; where that was cut, folder by folder.
    fn list_model(&self, repo: &Repo, found: &mut BTreeMap<RepoPath, Entry>) -> Result<(), Error> {
        let (mut folders, mut n_requests) = (vec![String::new()], 0);
        while let Some(folder) = folders.pop() {
            let whole = self.list(repo, "files", &folder, "Recursive=True")?;
            n_requests += 1;
            self.take(&whole, found)?;
            if whole.len() < CUT {
                continue;
            }
            let flat = self.list(repo, "files", &folder, "Recursive=False")?;
            self.take(&flat, found)?;
            let is_folder = |item: &&Value| item["Type"].as_str() == Some("tree");
            folders.extend(
                flat.iter().filter(is_folder).filter_map(|item| item["Path"].as_str().map(str::to_owned)),
            );
            if flat.len() >= CUT || n_requests > MAX_REQUESTS {
                self.source.note(&format!("ModelScope lists only a part of the files of the {repo}"));
            }
            if n_requests > MAX_REQUESTS {
                break;
            }
        }
        Ok(())
    }

    fn list_dataset(&self, repo: &Repo, found: &mut BTreeMap<RepoPath, Entry>) -> Result<(), Error> {
        for page in 1..=MAX_REQUESTS {
            let query = format!("Recursive=True&PageNumber={page}&PageSize={PAGE}");
            let mut retry = 0;
            let items = loop {
                match self.list(repo, "tree", "", &query) {
                    // A page behind one that came is refused now and then, and comes when it is asked for again.
                    Err(error @ Error::Forbidden { .. }) if page > 1 && retry < pauses::N_RETRIES => {
                        let pause = pauses::before(retry, self.source.environment.first_pause);
                        self.source.client.wait(self.source.progress, pause, &error);
                        retry += 1;
                    }
                    items => break items?,
                }
            };
            self.take(&items, found)?;
            if items.len() < PAGE {
                break;
            }
        }
        Ok(())
    }

    /// One list.
    fn list(&self, repo: &Repo, what: &str, folder: &str, query: &str) -> Result<Vec<Value>, Error> {
        let root =
            if folder.is_empty() { String::new() } else { format!("&Root={}", encoded(folder, false)) };
        let revision = encoded(&repo.revision, false);
        let url = format!("{}/repo/{what}?Revision={revision}&{query}{root}", self.api(repo));
        let (text, _) = api::text(self.source.client, &url, Subject::repo(repo))?;
        let wrong = |problem: &str| Error::NotAHub { url: shown(&url), problem: problem.to_owned() };
        let answer: Value = serde_json::from_str(&text).map_err(|_| wrong("its answer is not JSON"))?;
        if answer["Success"].as_bool() == Some(false) {
            let message =
                crate::refusal::printable(answer["Message"].as_str().unwrap_or("it gives no reason"));
            return Err(wrong(&format!("it says {message:?}")));
        }
        let data = &answer["Data"];
        let items = data.as_array().or_else(|| data["Files"].as_array());
        // A repository without files has no list at all.
        match (items, data) {
            (Some(items), _) => Ok(items.clone()),
            (None, Value::Object(_) | Value::Null) => Ok(Vec::new()),
            _ => Err(wrong("its answer has no list of files")),
        }
    }

    fn take(&self, items: &[Value], found: &mut BTreeMap<RepoPath, Entry>) -> Result<(), Error> {
        for item in items.iter().filter(|item| item["Type"].as_str() != Some("tree")) {
            let path = match RepoPath::of(item["Path"].as_str().unwrap_or_default()) {
                Ok(path) => path,
                Err(error) => {
                    self.source.note(&error.to_string());
                    continue;
                }
            };
            let size = item["Size"].as_u64().unwrap_or_default();
            let etag = item["Sha256"].as_str().and_then(|text| Etag::of(&text.to_ascii_lowercase()));
            let etag = etag.filter(Etag::is_sha256);
            found.insert(path.clone(), Entry { path, size, etag });
        }
        Ok(())
    }

    /// What lies here without the hub.
    fn list_here(&self, repo: &Repo) -> Option<Listing> {
        let mut entries = Vec::new();
        self.walk("", 0, &mut entries);
        (!entries.is_empty()).then(|| Listing { commit: repo.revision.clone(), entries, is_whole: false })
    }

    fn walk(&self, prefix: &str, depth: usize, entries: &mut Vec<Entry>) {
        let Ok(found) = fs::read_dir(self.folder.root().join(prefix)) else { return };
        for entry in found.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
            let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
            match (entry.metadata(), RepoPath::of(&path)) {
                (Ok(found), _) if found.is_dir() && depth < MAX_DEPTH => self.walk(&path, depth + 1, entries),
                (Ok(found), Ok(path)) if found.is_file() && !path.as_str().ends_with(".incomplete") => {
                    entries.push(Entry { path, size: found.len(), etag: None });
                }
                _ => {}
            }
        }
    }

    fn api(&self, repo: &Repo) -> String {
        format!("{}/api/v1/{}/{}", self.source.client.endpoint, repo.kind.plural(), repo.id)
    }

    fn get(&self, repo: &Repo, listing: &Listing, entry: &Entry) -> Result<SnapshotFile, Error> {
        let path = &entry.path;
        let local = self.folder.place(path);
        let etag = entry.etag.clone().unwrap_or_else(|| Etag::unchecked(path, entry.size));
        let is_here =
            |length: u64| fs::metadata(&local).is_ok_and(|found| found.is_file() && found.len() == length);
        let is_current = !listing.is_whole
            || is_here(entry.size) && (entry.etag.is_none() || self.folder.is_current(path, &etag));
        if !is_current {
            if self.source.is_offline {
                return Err(self.source.offline(repo, path.as_str()));
            }
            self.download(repo, entry, &etag)?;
        }
        if listing.is_whole && entry.etag.is_some() {
            // Without the note the file is hashed again the next time.
            let _ = self.folder.write_note(path, &listing.commit, &etag);
        }
        let etag = entry.etag.as_ref().map(ToString::to_string);
        Ok(SnapshotFile { path: path.to_string(), etag, n_bytes: entry.size, local })
    }

    fn download(&self, repo: &Repo, entry: &Entry, etag: &Etag) -> Result<(), Error> {
        let (source, path) = (&self.source, &entry.path);
        let (revision, file) = (encoded(&repo.revision, false), encoded(path.as_str(), false));
        let location = format!("{}/repo?Revision={revision}&FilePath={file}", self.api(repo));
        let size = Some(entry.size);
        let metadata = Metadata { commit: repo.revision.clone(), etag: etag.clone(), size, location };
        let (work, local) = (self.folder.work(path), self.folder.place(path));
        fs::create_dir_all(&work).at(&work)?;
        make_folder_of(&local)?;
        let signs = Signs { folder: &work, begin: etag.as_str() };
        let lock = work.join(format!("{}.lock", path.file_name()));
        let _lock = Lock::wait(&lock, &signs, path.as_str(), source.progress);
        if entry.etag.is_some() && self.folder.is_current(path, etag) {
            return Ok(());
        }
        match transfer::fetch(source.client, repo, path, &metadata, &work, source.progress)? {
            Outcome::Complete(partial) => partial.publish(&local)?,
            Outcome::Stale(error) => return Err(error),
        }
        partial::clean(&work, etag);
        (source.progress)(&Event::Done { path: path.as_str() });
        Ok(())
    }
}

impl Store for ModelScope<'_> {
    fn listing(&self, repo: &Repo) -> Result<Listing, Error> {
        if self.source.is_offline {
            return self.list_here(repo).ok_or_else(|| self.source.offline(repo, "everything"));
        }
        let error = match self.list_now(repo) {
            Err(error) if !matches!(error, Error::Proxy { .. }) => error,
            listing => return listing,
        };
        if let Some(listing) = self.list_here(repo) {
            self.source.note(&format!("the {repo} is taken from the cache, since {error}"));
            return Ok(listing);
        }
        if !error.is_transient() {
            return Err(error);
        }
        let again =
            self.source.client.patiently_after(Err(error), self.source.progress, || self.list_now(repo));
        again.map_err(|error| match error.is_transient() {
            true => self.source.unreachable(repo, "everything", error),
            false => error,
        })
    }

    fn fetch(&self, repo: &Repo, listing: &Listing, entries: Vec<Entry>) -> Result<Vec<SnapshotFile>, Error> {
        let is_missing = |entry: &&Entry| !self.folder.place(&entry.path).is_file();
        let needs =
            entries.iter().filter(is_missing).fold(0_u64, |sum, entry| sum.saturating_add(entry.size));
        space::check(self.folder.root(), needs)?;
        parallel::each(&entries, |entry| self.get(repo, listing, entry))
    }

    fn file(&self, repo: &Repo, path: &RepoPath) -> Result<PathBuf, Error> {
        let listing = self.listing(repo)?;
        let Some(entry) = listing.get(path.as_str()) else {
            return Err(match listing.is_whole {
                true => absent(repo, path),
                false => self.source.offline(repo, path.as_str()),
            });
        };
        Ok(self.get(repo, &listing, entry)?.local)
    }

    fn folder(&self, _: &Repo, _: &Listing) -> PathBuf {
        self.folder.root().to_owned()
    }
}

/// A folder that an older program has filled.
fn old_folder(source: &Source<'_>, repo: &Repo) -> Option<PathBuf> {
    let (owner, name) = repo.id.split_once('/')?;
    let name = name.replace('.', "___");
    let cache = &source.environment.modelscope_cache;
    let below = |folder: PathBuf| folder.join(repo.kind.plural()).join(owner).join(&name);
    let has_files = |folder: &PathBuf| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    [below(cache.clone()), below(cache.join("hub"))].into_iter().find(has_files)
}
