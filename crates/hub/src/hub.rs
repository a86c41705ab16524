//! A hub as programs use it: models and data sets by their names.

use std::path::{Path, PathBuf};

use crate::client::{Client, Login};
use crate::environment::Environment;
use crate::error::Error;
use crate::file::Source;
use crate::folder::Folder;
use crate::huggingface::HuggingFace;
use crate::listing::Listing;
use crate::modelscope::ModelScope;
use crate::names::{Kind, Repo, RepoPath};
use crate::progress::{Event, Progress};
use crate::store::{Snapshot, SnapshotFile, Store};
use crate::{reading, weights};

/// The longest index of weights.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// Which hub it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// huggingface.co, or a mirror of it.
    HuggingFace,
    /// modelscope.cn, or its site abroad.
    ModelScope,
}

/// A hub and the cache of what came from it.
pub struct Hub {
    environment: Environment,
    pub(crate) client: Client,
    site: Site,
    progress: Box<Progress>,
}

impl Hub {
    /// The hub that the environment of this process names: ModelScope with `USE_MODELSCOPE_HUB`, else Hugging Face.
    ///
    /// # Errors
    /// An address that is none, and certificates that cannot be read.
    pub fn from_env() -> Result<Hub, Error> {
        let environment = Environment::read();
        let site = if environment.uses_modelscope { Site::ModelScope } else { Site::HuggingFace };
        Hub::new(environment, site)
    }

    /// A hub in a given environment.
    ///
    /// # Errors
    /// As [`Hub::from_env`].
    pub fn new(environment: Environment, site: Site) -> Result<Hub, Error> {
        let (endpoint, token, login) = match site {
            Site::HuggingFace => (&environment.endpoint, environment.token.clone(), Login::Bearer),
            Site::ModelScope => (
                &environment.modelscope_endpoint,
                environment.modelscope_token.clone(),
                Login::BearerAndCookie,
            ),
        };
        let client = Client::new(&environment, endpoint, token, login)?;
        Ok(Hub { environment, client, site, progress: Box::new(|_| {}) })
    }

    /// Tells a function what happens. Several threads call it.
    #[must_use]
    pub fn with_progress(mut self, progress: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Hub {
        self.progress = Box::new(progress);
        self
    }

    /// The environment that it works in.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The files that a model is read from: `owner/name` or `owner/name@revision`, at `main` if nothing else is said.
    ///
    /// # Errors
    /// No such model or revision, no weights that Oarlock reads, no network where the cache does not have all of it.
    pub fn model(&self, name: &str, revision: Option<&str>) -> Result<Snapshot, Error> {
        let repo = self.repo(Kind::Model, name, revision)?;
        self.model_in(&repo, &*self.store(&repo))
    }

    /// As [`Hub::model`], with the files in a folder of their own instead of the cache.
    ///
    /// # Errors
    /// As [`Hub::model`]; the folder cannot be written.
    pub fn model_to(&self, name: &str, revision: Option<&str>, folder: &Path) -> Result<Snapshot, Error> {
        let repo = self.repo(Kind::Model, name, revision)?;
        let (source, folder) = (self.source(Kind::Model), Folder::of_huggingface(folder)?);
        match self.site {
            Site::HuggingFace => self.model_in(&repo, &HuggingFace::to_folder(source, folder)),
            Site::ModelScope => self.model_in(&repo, &ModelScope::to_folder(source, folder)),
        }
    }

    /// The files of a quantization in GGUF, `owner/name:Q4_K_M`: the suffix in any case, Q4_K_M if there is none, and else
    /// the first file.
    ///
    /// # Errors
    /// As [`Hub::model`]; no such file.
    pub fn gguf(&self, name: &str, revision: Option<&str>) -> Result<Snapshot, Error> {
        let (name, tag) = match name.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (name, None),
        };
        let repo = self.repo(Kind::Model, name, revision)?;
        let store = self.store(&repo);
        let listing = store.listing(&repo)?;
        let files = store.fetch(&repo, &listing, weights::gguf(&repo, &listing, tag)?)?;
        Ok(snapshot(&*store, &repo, listing, files))
    }

    /// One file of a repository.
    ///
    /// # Errors
    /// No such repository, revision or file, and no network where the cache does not have it.
    pub fn file(&self, kind: Kind, name: &str, revision: Option<&str>, path: &str) -> Result<PathBuf, Error> {
        let repo = self.repo(kind, name, revision)?;
        let path = RepoPath::of(path)?;
        let store = self.store(&repo);
        store.file(&repo, &path).map_err(|error| self.with_nearest(&*store, &repo, error))
    }

    /// Adds the names of what there is to an error about what there is not.
    fn with_nearest(&self, store: &dyn Store, repo: &Repo, error: Error) -> Error {
        if self.source(repo.kind).is_offline {
            return error;
        }
        match error {
            Error::EntryNotFound { repo: name, path, revision, nearest: None } => {
                let nearest = store.listing(repo).ok().and_then(|listing| listing.nearest(&path));
                Error::EntryNotFound { repo: name, path, revision, nearest }
            }
            Error::RevisionNotFound { nearest: None, .. } => store.listing(repo).err().unwrap_or(error),
            error => error,
        }
    }

    fn model_in(&self, repo: &Repo, store: &dyn Store) -> Result<Snapshot, Error> {
        let listing = store.listing(repo)?;
        let source = self.source(Kind::Model);
        let choice = match weights::choose(repo, &listing) {
            // A part of a snapshot without weights says nothing about the repository.
            Err(Error::NoWeights { .. }) if !listing.is_whole => return Err(source.offline(repo, "weights")),
            choice => choice?,
        };
        let mut files = store.fetch(repo, &listing, choice.files)?;
        if let Some(index) = choice.index {
            let found = files.iter().find(|file| file.path == index.as_str());
            let local = found.map(|file| file.local.clone()).unwrap_or_default();
            let text = reading::text(&local, MAX_INDEX_BYTES).map_err(|error| Error::io(&local, error))?;
            let shards = match weights::shards(repo, &listing, &text) {
                Err(Error::EntryNotFound { path, .. }) if !listing.is_whole => {
                    return Err(source.offline(repo, &path));
                }
                shards => shards?,
            };
            files.extend(store.fetch(repo, &listing, shards)?);
        }
        Ok(snapshot(store, repo, listing, files))
    }

    pub(crate) fn repo(&self, kind: Kind, name: &str, revision: Option<&str>) -> Result<Repo, Error> {
        let default = if self.site == Site::ModelScope { "master" } else { "main" };
        let mut repo = Repo::of(kind, name, revision, default)?;
        // As LLaMA-Factory has it: its default names the default branch here.
        if self.site == Site::ModelScope && repo.revision == "main" {
            repo.revision = default.to_owned();
        }
        Ok(repo)
    }

    /// The cache of this hub.
    pub(crate) fn store(&self, repo: &Repo) -> Box<dyn Store + '_> {
        let source = self.source(repo.kind);
        match self.site {
            Site::HuggingFace => Box::new(HuggingFace::in_cache(source)),
            Site::ModelScope => Box::new(ModelScope::in_cache(source, repo)),
        }
    }

    pub(crate) fn source(&self, kind: Kind) -> Source<'_> {
        let is_of_data = kind == Kind::Dataset && self.environment.datasets_are_offline;
        Source {
            environment: &self.environment,
            client: &self.client,
            progress: &*self.progress,
            is_offline: self.environment.is_offline || is_of_data,
        }
    }
}

pub(crate) fn snapshot(
    store: &dyn Store,
    repo: &Repo,
    listing: Listing,
    files: Vec<SnapshotFile>,
) -> Snapshot {
    Snapshot { folder: store.folder(repo, &listing), commit: listing.commit, files }
}
