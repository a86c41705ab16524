//! The files of a repository at one commit: from the hub, from the list in the cache, or what a snapshot has.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::address;
use crate::api;
use crate::cache::{self, Cache};
use crate::client::Client;
use crate::error::Error;
use crate::file::Source;
use crate::names::{self, Etag, Repo, RepoPath};
use crate::nearest::nearest;
use crate::reading;
use crate::refusal::Subject;

/// The most pages and files of a list, and the longest list of a cache.
const MAX_PAGES: usize = 10_000;
const MAX_FILES: usize = 2_000_000;
const MAX_TREE_BYTES: u64 = 256 << 20;

/// One file in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: RepoPath,
    pub(crate) size: u64,
    /// Unknown for a file of a snapshot that is no link.
    pub(crate) etag: Option<Etag>,
}

/// The files of a repository at one commit.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) entries: Vec<Entry>,
    /// Whether these are all files of the commit, and not only those of a snapshot.
    pub(crate) is_whole: bool,
}

impl Listing {
    pub(crate) fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.path.as_str() == path)
    }

    /// The name in the list that is closest to one that is not.
    pub(crate) fn nearest(&self, path: &str) -> Option<String> {
        nearest(path, self.entries.iter().map(|entry| entry.path.as_str()))
    }
}

impl Source<'_> {
    /// The files of a repository at the commit that its revision names now, or named when the hub was last asked. Without the
    /// hub and the cache, those that `elsewhere` knows.
    ///
    /// # Errors
    /// No such repository or revision, and a hub that cannot be asked where nothing is in the cache.
    pub(crate) fn listing(
        &self,
        repo: &Repo,
        elsewhere: &dyn Fn() -> Option<Listing>,
    ) -> Result<Listing, Error> {
        let cache = Cache::of(self.environment, repo);
        if names::is_commit(&repo.revision)
            && let Some(listing) = cached_tree(&cache, &repo.revision)
        {
            return Ok(listing);
        }
        if self.is_offline {
            return cached(&cache, repo).or_else(elsewhere).ok_or_else(|| self.offline(repo, "everything"));
        }
        let error = match self.ask(&cache, repo) {
            Ok(listing) => return Ok(listing),
            Err(error) => error,
        };
        match error {
            Error::Proxy { .. } => return Err(error),
            Error::RevisionNotFound { repo: name, revision, .. } => {
                let nearest = self.nearest_revision(repo);
                return Err(Error::RevisionNotFound { repo: name, revision, nearest });
            }
            _ => {}
        }
        if let Some(listing) = cached(&cache, repo).or_else(elsewhere) {
            self.note(&format!("the {repo} is taken from the cache, since {error}"));
            return Ok(listing);
        }
        if !error.is_transient() {
            return Err(error);
        }
        self.client.patiently_after(Err(error), self.progress, || self.ask(&cache, repo)).map_err(|error| {
            if error.is_transient() { self.unreachable(repo, "everything", error) } else { error }
        })
    }

    fn ask(&self, cache: &Cache, repo: &Repo) -> Result<Listing, Error> {
        let commit = match names::is_commit(&repo.revision) {
            true => repo.revision.clone(),
            false => commit_now(self.client, repo)?,
        };
        let listing = match cached_tree(cache, &commit) {
            Some(listing) => listing,
            None => self.tree(cache, repo, &commit)?,
        };
        // A cache that cannot be written has all it needs, or fails at the first file.
        let _ = cache.remember(&repo.revision, &commit);
        Ok(listing)
    }

    /// The list of a commit, page by page, which is kept: a commit never changes.
    fn tree(&self, cache: &Cache, repo: &Repo, commit: &str) -> Result<Listing, Error> {
        let mut url = format!("{}/tree/{commit}?recursive=true", address_of(self.client, repo));
        let (mut entries, mut kept, mut seen) = (Vec::new(), BTreeMap::new(), 0);
        loop {
            let (text, headers) = api::text(self.client, &url, Subject::repo(repo))?;
            let page: Value = serde_json::from_str(&text).map_err(|_| not_json(&url))?;
            for item in page.as_array().ok_or_else(|| not_json(&url))? {
                let path = item["path"].as_str().unwrap_or_default();
                if item["type"].as_str() != Some("file") {
                    continue;
                }
                match (RepoPath::of(path), of_tree(item)) {
                    (Ok(path), Some((size, etag, note))) => {
                        kept.insert(path.to_string(), note);
                        entries.push(Entry { path, size, etag: Some(etag) });
                    }
                    (Err(error), _) => self.note(&error.to_string()),
                    (_, None) => return Err(not_json(&url)),
                }
            }
            seen += 1;
            let next = headers.get("link").and_then(|link| address::next_page(link.to_str().ok()?));
            let Some(next) = next else { break };
            if seen >= MAX_PAGES || entries.len() > MAX_FILES {
                let problem = "its list of files has no end".to_owned();
                return Err(Error::NotAHub { url: address::shown(&url), problem });
            }
            let next = on_endpoint(next, self.client);
            url = address::joined(&url, &next).ok_or_else(|| not_json(&url))?;
        }
        keep(cache, commit, &kept);
        Ok(Listing { commit: commit.to_owned(), entries, is_whole: true })
    }

    /// The branch or tag whose name is closest to one that there is not.
    fn nearest_revision(&self, repo: &Repo) -> Option<String> {
        let url = format!("{}/refs", address_of(self.client, repo));
        let (text, _) = api::text(self.client, &url, Subject::repo(repo)).ok()?;
        let refs: Value = serde_json::from_str(&text).ok()?;
        let names = |kind: &str| refs[kind].as_array().cloned().unwrap_or_default();
        let all: Vec<Value> = [names("branches"), names("tags")].concat();
        nearest(&repo.revision, all.iter().filter_map(|one| one["name"].as_str()))
    }
}

fn address_of(client: &Client, repo: &Repo) -> String {
    format!("{}/api/{}/{}", client.endpoint, repo.kind.plural(), repo.id)
}

/// The commit that a branch or a tag names now.
fn commit_now(client: &Client, repo: &Repo) -> Result<String, Error> {
    let url = format!("{}/revision/{}", address_of(client, repo), address::encoded(&repo.revision, false));
    let (text, _) = api::text(client, &url, Subject::repo(repo))?;
    let info: Value = serde_json::from_str(&text).map_err(|_| not_json(&url))?;
    let commit = info["sha"].as_str().filter(|sha| names::is_commit(sha));
    commit.map(str::to_owned).ok_or_else(|| not_json(&url))
}

/// Replies through a mirror may name the hub itself.
fn on_endpoint(url: &str, client: &Client) -> String {
    match url.strip_prefix(crate::environment::HUGGING_FACE) {
        Some(rest) if rest.starts_with('/') => format!("{}{rest}", client.endpoint),
        _ => url.to_owned(),
    }
}

fn not_json(url: &str) -> Error {
    let problem = "its answer is not the JSON of the API".to_owned();
    Error::NotAHub { url: address::shown(url), problem }
}

/// The size, the entity tag, and what the cache keeps of an entry of the hub.
fn of_tree(item: &Value) -> Option<(u64, Etag, Value)> {
    let size = item["size"].as_u64()?;
    let blob_id = item["oid"].as_str()?;
    let mut note = json!({"size": size, "blob_id": blob_id});
    let mut found = (size, Etag::of(blob_id)?);
    if let Some(lfs) = item["lfs"].as_object() {
        let sha256 = lfs.get("oid").or(lfs.get("sha256"))?.as_str()?;
        let size = lfs.get("size")?.as_u64()?;
        found = (size, Etag::of(sha256)?);
        note["lfs_sha256"] = sha256.into();
        note["lfs_size"] = size.into();
    }
    // Only a sound hash: huggingface_hub ignores a list with another one.
    let is_hash = |hash: &&str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(hash) = item["xetHash"].as_str().filter(is_hash) {
        note["xet_hash"] = hash.into();
    }
    Some((found.0, found.1, note))
}

/// Keeps a list as huggingface_hub does. It is only a help: a cache that cannot be written does without.
fn keep(cache: &Cache, commit: &str, files: &BTreeMap<String, Value>) {
    let path = cache.tree(commit);
    let files: Map<String, Value> = files.iter().map(|(path, note)| (path.clone(), note.clone())).collect();
    let text = json!({"format_version": 1, "files": files}).to_string();
    if cache::make_folder_of(&path).is_ok() {
        cache::tag(cache.root());
        let _ = oarlock_files::replace(&path, text);
    }
}

/// The list that a cache has of a commit.
fn cached_tree(cache: &Cache, commit: &str) -> Option<Listing> {
    let text = reading::text(&cache.tree(commit), MAX_TREE_BYTES).ok()?;
    let tree: Value = serde_json::from_str(&text).ok()?;
    if tree["format_version"].as_u64() != Some(1) {
        return None;
    }
    let entry = |(path, note): (&String, &Value)| {
        let large = note["lfs_sha256"].as_str();
        let etag = Etag::of(large.or(note["blob_id"].as_str())?)?;
        let size = note["lfs_size"].as_u64().or(note["size"].as_u64())?;
        Some(Entry { path: RepoPath::of(path).ok()?, size, etag: Some(etag) })
    };
    let entries: Option<Vec<Entry>> = tree["files"].as_object()?.iter().map(entry).collect();
    Some(Listing { commit: commit.to_owned(), entries: entries?, is_whole: true })
}

/// What a cache knows of a repository without the hub.
fn cached(cache: &Cache, repo: &Repo) -> Option<Listing> {
    let commit = cache.commit_of(&repo.revision)?;
    if let Some(listing) = cached_tree(cache, &commit) {
        return Some(listing);
    }
    let entry = |(path, etag, size)| Entry { path, size, etag };
    let entries: Vec<Entry> = cache.files_of(&commit).into_iter().map(entry).collect();
    (!entries.is_empty()).then_some(Listing { commit, entries, is_whole: false })
}
