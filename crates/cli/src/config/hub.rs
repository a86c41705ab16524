//! Models and adapters by their names on a hub: where the cache has them. Nothing here asks the network.

use std::path::{Path, PathBuf};

use oarlock_config::settings::keys::Row;
use oarlock_config::settings::resolve::Settings;
use oarlock_hub::{Environment, Error, Hub, Kind, Repo, Site};

use super::table as keys;

/// Folders in which people keep models and data, which so are not owners on a hub.
const FOLDERS: [&str; 12] = [
    "checkpoints",
    "data",
    "dataset",
    "datasets",
    "model",
    "models",
    "out",
    "output",
    "outputs",
    "results",
    "runs",
    "saves",
];
/// How files of data end, which so are not data sets of a hub.
const FILES: [&str; 6] = ["csv", "json", "jsonl", "parquet", "tsv", "txt"];

/// A model on a hub: `OWNER/NAME`, `OWNER/NAME@REVISION`, or `OWNER/NAME:Q4_K_M` for a file in GGUF.
#[derive(Clone, Debug)]
pub struct OnHub {
    name: String,
    revision: Option<String>,
    environment: Environment,
}

impl OnHub {
    /// The model that a word names, unless it is a path of this machine.
    pub fn of(word: &str) -> Option<OnHub> {
        is_name_of(Kind::Model, word).then(|| OnHub {
            name: word.to_owned(),
            revision: None,
            environment: Environment::read(),
        })
    }

    /// The model of a configuration, with its revision, its token and its cache.
    pub fn of_settings(settings: &Settings, word: &str) -> Option<OnHub> {
        let mut found = OnHub::of(word)?;
        // What lies where runs write is of another run.
        let beside = Path::new(settings.word(keys::OUTPUT_DIR)).components().next();
        if beside.is_some() && beside == Path::new(word).components().next() {
            return None;
        }
        let written = |key: &'static Row| settings.setting(key).is_written();
        if written(keys::MODEL_REVISION.row) && !word.contains('@') {
            found.revision = Some(settings.word(keys::MODEL_REVISION).to_owned());
        }
        found.environment = environment(settings);
        Some(found)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the cache has all of it.
    pub fn cached(&self) -> Option<PathBuf> {
        let mut environment = self.environment.clone();
        environment.is_offline = true;
        self.find(&hub_of(environment).ok()?).ok()
    }

    /// The hub that has it.
    ///
    /// # Errors
    /// An address that is none, and certificates that cannot be read.
    pub fn hub(&self) -> Result<Hub, Error> {
        hub_of(self.environment.clone())
    }

    /// Its folder or its file, which is fetched where the cache does not have all of it.
    ///
    /// # Errors
    /// What the hub says.
    pub fn find(&self, hub: &Hub) -> Result<PathBuf, Error> {
        let revision = self.revision.as_deref();
        // A colon stands in no name of a model.
        if !self.name.contains(':') {
            return Ok(hub.model(&self.name, revision)?.folder);
        }
        let snapshot = hub.gguf(&self.name, revision)?;
        let file = snapshot.files.first().map(|file| snapshot.folder.join(&file.path));
        Ok(file.unwrap_or(snapshot.folder))
    }
}

/// Whether a word names what a hub has, and is no path of this machine: one that is there, one whose folder is there or is
/// called as people call folders of models, or one that no hub has.
pub(super) fn is_name_of(kind: Kind, word: &str) -> bool {
    let path = Path::new(word);
    let is_folder = FOLDERS.iter().any(|folder| path.starts_with(folder));
    let is_file = path.extension().is_some_and(|end| FILES.iter().any(|file| end == *file));
    let is_here = is_folder || is_file || path.exists() || path.parent().is_some_and(Path::exists);
    // Without an owner it is a folder that somebody has forgotten to make.
    let is_name = word.matches('/').count() == 1
        && Repo::of(kind, word.split(':').next().unwrap_or_default(), None, "main").is_ok();
    is_name && !is_here
}

/// The hub of a configuration, with its tokens and its cache.
pub(super) fn environment(settings: &Settings) -> Environment {
    let mut environment = Environment::read();
    if let Some(token) = settings.get(keys::HF_HUB_TOKEN) {
        environment.give_token(token.reveal());
    }
    if let Some(token) = settings.get(keys::MS_HUB_TOKEN) {
        environment.give_modelscope_token(token.reveal());
    }
    if let Some(cache) = settings.get(keys::CACHE_DIR) {
        environment.cache = cache.into();
        environment.modelscope_cache.clone_from(&environment.cache);
    }
    environment
}

/// A hub with these settings.
pub(super) fn hub_of(environment: Environment) -> Result<Hub, Error> {
    let site = if environment.uses_modelscope { Site::ModelScope } else { Site::HuggingFace };
    Hub::new(environment, site)
}

/// Where a model or an adapter of a configuration is: the path, or what the cache has of this name.
pub fn local(settings: &Settings, word: &str) -> PathBuf {
    OnHub::of_settings(settings, word).and_then(|model| model.cached()).unwrap_or_else(|| word.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hubs_are_told_from_paths() {
        for name in ["Qwen/Qwen2.5-0.5B", "a/b@v1.0", "TheBloke/x-GGUF:Q4_K_M"] {
            assert!(OnHub::of(name).is_some(), "{name}");
        }
        // The folder `src` is there, and what is in it would be a path.
        for path in [
            "model",
            "./a/b",
            "/a/b",
            "a/b/c",
            "src/model",
            "../x",
            "a/",
            "a/b c",
            "src",
            "",
            "https://a/b",
            "out/sft",
            "dataset/sft",
            "texts/mine.jsonl",
        ] {
            assert!(OnHub::of(path).is_none(), "{path}");
        }
    }
}
