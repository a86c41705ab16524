//! One file of Hugging Face, as huggingface_hub gets it: from the cache if it can be, else from the hub into the cache.

use std::path::PathBuf;

use crate::cache::Cache;
use crate::client::Client;
use crate::environment::Environment;
use crate::error::Error;
use crate::locks::{Lock, Signs};
use crate::metadata::{self, Answer, Metadata};
use crate::names::{self, Repo, RepoPath};
use crate::partial::{self, Partial};
use crate::progress::{Event, Progress};
use crate::transfer::{self, Outcome};

/// How often the hub is asked again because an address has expired or a file has changed on the way.
const N_ANSWERS: u32 = 3;

/// What getting a file needs.
#[derive(Clone, Copy)]
pub(crate) struct Source<'s> {
    pub(crate) environment: &'s Environment,
    pub(crate) client: &'s Client,
    pub(crate) progress: &'s Progress,
    /// No request may be sent.
    pub(crate) is_offline: bool,
}

impl Source<'_> {
    /// A file at the revision of the repository.
    ///
    /// # Errors
    /// It is not there, or cannot be had and is not in the cache.
    pub(crate) fn file(&self, repo: &Repo, path: &RepoPath) -> Result<PathBuf, Error> {
        let cache = Cache::of(self.environment, repo);
        if names::is_commit(&repo.revision) {
            if let Some(found) = cached(&cache, repo, path) {
                return Ok(found);
            }
            if cache.is_known_absent(&repo.revision, path) {
                return Err(absent(repo, path));
            }
        }
        if self.is_offline {
            return cached(&cache, repo, path).ok_or_else(|| self.offline(repo, path.as_str()));
        }
        let metadata = match self.metadata(repo, path, || cached(&cache, repo, path))? {
            Known::Cached(found) => return Ok(found),
            Known::Now(metadata) => metadata,
            Known::Absent(commit, error) => {
                if let Some(commit) = commit {
                    cache.mark_absent(&commit, path);
                    // Only the next request would be saved by it.
                    let _ = cache.remember(&repo.revision, &commit);
                }
                return Err(error);
            }
        };
        self.put(&cache, repo, path, metadata)
    }

    fn put(&self, cache: &Cache, repo: &Repo, path: &RepoPath, metadata: Metadata) -> Result<PathBuf, Error> {
        let mut metadata = metadata;
        let there = |metadata: &Metadata| {
            let local = cache.pointer(&metadata.commit, path);
            local.is_file().then_some(local)
        };
        if let Some(found) = there(&metadata) {
            // The cache may be one that only can be read.
            let _ = cache.remember(&repo.revision, &metadata.commit);
            return Ok(found);
        }
        cache.prepare()?;
        let blobs = cache.blobs();
        let mut is_new = false;
        if !cache.blob(&metadata.etag).is_file() {
            let signs = Signs { folder: &blobs, begin: metadata.etag.as_str() };
            let lock = cache.lock(&metadata.etag);
            let _lock = Lock::wait(&lock, &signs, path.as_str(), self.progress);
            // Who held the lock may have downloaded this file, and moved it where links are off.
            if let Some(found) = there(&metadata) {
                cache.remember(&repo.revision, &metadata.commit)?;
                return Ok(found);
            }
            if !cache.blob(&metadata.etag).is_file() {
                let partial = self.download(repo, path, &mut metadata, &blobs)?;
                partial.publish(&cache.blob(&metadata.etag))?;
                partial::clean(&blobs, &metadata.etag);
                is_new = true;
                (self.progress)(&Event::Done { path: path.as_str() });
            }
        }
        cache.remember(&repo.revision, &metadata.commit)?;
        cache.place(&metadata.etag, &metadata.commit, path, is_new)?;
        Ok(cache.pointer(&metadata.commit, path))
    }

    /// Asks the hub for a file, where `cached` says what there is without it.
    pub(crate) fn metadata<T>(
        &self,
        repo: &Repo,
        path: &RepoPath,
        cached: impl Fn() -> Option<T>,
    ) -> Result<Known<T>, Error> {
        let timeout = self.client.etag_timeout;
        let error = match metadata::ask(self.client, repo, path, timeout) {
            Ok(answer) => return Ok(Known::of(answer)),
            Err(error) => error,
        };
        if matches!(error, Error::Proxy { .. } | Error::RevisionNotFound { .. }) {
            return Err(error);
        }
        if let Some(found) = cached() {
            self.note(&format!("{path} of the {repo} is taken from the cache, since {error}"));
            return Ok(Known::Cached(found));
        }
        if !error.is_transient() {
            return Err(error);
        }
        let again = || metadata::ask(self.client, repo, path, timeout * 3);
        match self.client.patiently_after(Err(error), self.progress, again) {
            Ok(answer) => Ok(Known::of(answer)),
            Err(error) if error.is_transient() => Err(self.unreachable(repo, path.as_str(), error)),
            Err(error) => Err(error),
        }
    }

    /// Downloads a file under the entity tag that the hub names, also if that changes on the way.
    pub(crate) fn download(
        &self,
        repo: &Repo,
        path: &RepoPath,
        metadata: &mut Metadata,
        folder: &std::path::Path,
    ) -> Result<Partial, Error> {
        let mut asked = 0;
        loop {
            let outcome = transfer::fetch(self.client, repo, path, metadata, folder, self.progress)?;
            let why = match outcome {
                Outcome::Complete(partial) => return Ok(partial),
                Outcome::Stale(error) => error,
            };
            asked += 1;
            if asked >= N_ANSWERS {
                return Err(why);
            }
            let again = || metadata::ask(self.client, repo, path, self.client.etag_timeout);
            let old = metadata.etag.clone();
            match self.client.patiently(self.progress, again)? {
                Answer::File(now) => *metadata = now,
                Answer::Absent { error, .. } => return Err(error),
            }
            if metadata.etag != old {
                partial::clean(folder, &old);
            } else if matches!(why, Error::Hash { .. }) && asked + 1 >= N_ANSWERS {
                // Twice the same wrong content: a third time is no better.
                return Err(why);
            }
        }
    }

    pub(crate) fn note(&self, text: &str) {
        (self.progress)(&Event::Note(text));
    }

    pub(crate) fn offline(&self, repo: &Repo, what: &str) -> Error {
        let (repo, what) = (repo.to_string(), what.to_owned());
        Error::Offline { repo, what, cache: self.environment.cache.clone() }
    }

    pub(crate) fn unreachable(&self, repo: &Repo, what: &str, cause: Error) -> Error {
        let cache = self.environment.cache.clone();
        Error::Unreachable { repo: repo.to_string(), what: what.to_owned(), cache, cause: Box::new(cause) }
    }
}

/// What is known of a file after the hub was asked, or could not be.
pub(crate) enum Known<T> {
    Now(Metadata),
    Absent(Option<String>, Error),
    Cached(T),
}

impl<T> Known<T> {
    fn of(answer: Answer) -> Known<T> {
        match answer {
            Answer::File(metadata) => Known::Now(metadata),
            Answer::Absent { commit, error } => Known::Absent(commit, error),
        }
    }
}

/// A file that is in the cache at the commit that the revision is or was.
fn cached(cache: &Cache, repo: &Repo, path: &RepoPath) -> Option<PathBuf> {
    let commit = cache.commit_of(&repo.revision)?;
    let local = cache.pointer(&commit, path);
    local.is_file().then_some(local)
}

/// The error for a file that a commit is known not to have.
pub(crate) fn absent(repo: &Repo, path: &RepoPath) -> Error {
    Error::EntryNotFound {
        repo: repo.to_string(),
        path: path.to_string(),
        revision: repo.revision.clone(),
        nearest: None,
    }
}
