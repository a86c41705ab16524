//! Data sets by their names on a hub: where the cache has their files. Nothing here asks the network.

use std::path::{Path, PathBuf};

use oarlock::data::{RemoteDataset, RemoteFiles};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::resolve::Settings;
use oarlock_hub::{DatasetQuery, Environment, Error, Hub, Kind, Site};

use super::hub::{environment, hub_of, is_name_of};
use super::table as keys;

/// What `dataset_dir` says where no folder is meant, as in LLaMA-Factory.
const ONLINE: &str = "ONLINE";
const REMOTE: &str = "REMOTE:";
/// The table of a data set on a hub that defines others.
const TABLE: &str = "dataset_info.json";

/// A data set on a hub, or the table of one.
#[derive(Clone, Debug)]
pub struct DataOnHub {
    what: What,
    key: &'static Row,
    environment: Environment,
}

#[derive(Clone, Debug)]
enum What {
    Rows(RemoteDataset),
    Table(String),
}

impl DataOnHub {
    /// All that a configuration names: first the table, and once that is here the data sets of it.
    pub fn of_settings(settings: &Settings) -> Vec<DataOnHub> {
        let environment = environment(settings);
        let word = settings.word(keys::DATASET_DIR);
        let dir = dataset_dir(settings);
        if let Some(name) = word.strip_prefix(REMOTE).filter(|_| dir == Path::new(word)) {
            let what = What::Table(name.to_owned());
            return vec![DataOnHub { what, key: keys::DATASET_DIR.row, environment }];
        }
        let mut found = Vec::new();
        for (key, names) in [
            (keys::DATASET.row, settings.get(keys::DATASET)),
            (keys::EVAL_DATASET.row, settings.get(keys::EVAL_DATASET)),
        ] {
            let is_name = |name: &str| word == ONLINE || is_name_of(Kind::Dataset, name);
            // What is wrong with the table is said where the paths are checked.
            let remote = RemoteDataset::of_names(names, &dir, is_name).unwrap_or_default();
            found.extend(remote.into_iter().map(|rows| DataOnHub {
                what: What::Rows(rows),
                key,
                environment: environment.clone(),
            }));
        }
        found
    }

    /// What the configuration calls it.
    pub fn name(&self) -> &str {
        match &self.what {
            What::Rows(rows) => &rows.name,
            What::Table(name) => name,
        }
    }

    /// The key that names it.
    pub fn key(&self) -> &'static Row {
        self.key
    }

    /// Where the cache has all of it.
    pub fn cached(&self) -> Option<Vec<PathBuf>> {
        let mut offline = self.clone();
        offline.environment.is_offline = true;
        offline.find(&offline.hub().ok()?).ok()
    }

    /// The hub that has it: of two that an entry names, the one that USE_MODELSCOPE_HUB chooses.
    ///
    /// # Errors
    /// An address that is none, and certificates that cannot be read.
    pub fn hub(&self) -> Result<Hub, Error> {
        match &self.what {
            What::Rows(rows) if self.on_modelscope(rows) => {
                Hub::new(self.environment.clone(), Site::ModelScope)
            }
            What::Rows(_) => Hub::new(self.environment.clone(), Site::HuggingFace),
            What::Table(_) => hub_of(self.environment.clone()),
        }
    }

    fn on_modelscope(&self, rows: &RemoteDataset) -> bool {
        rows.ms_hub.is_some() && (self.environment.uses_modelscope || rows.hf_hub.is_none())
    }

    /// Its files, which are fetched where the cache does not have all of them.
    ///
    /// # Errors
    /// What the hub says.
    pub fn find(&self, hub: &Hub) -> Result<Vec<PathBuf>, Error> {
        let rows = match &self.what {
            What::Table(name) => return Ok(vec![hub.file(Kind::Dataset, name, None, TABLE)?]),
            What::Rows(rows) => rows,
        };
        let name = if self.on_modelscope(rows) { &rows.ms_hub } else { &rows.hf_hub };
        let query = DatasetQuery {
            config: rows.subset.clone(),
            folder: rows.folder.clone(),
            split: Some(rows.split.clone()),
            revision: None,
        };
        let found = hub.dataset(name.as_deref().unwrap_or(&rows.name), &query)?;
        let files = found.splits.iter().flat_map(|split| &split.files);
        Ok(files.map(|file| file.local.clone()).collect())
    }
}

/// The files of the data sets of hubs that the cache has, by the names that a configuration has for them.
pub fn local(settings: &Settings) -> RemoteFiles {
    let rows = DataOnHub::of_settings(settings).into_iter();
    let rows = rows.filter(|data| matches!(data.what, What::Rows(_)));
    rows.filter_map(|data| Some((data.name().to_owned(), data.cached()?))).collect()
}

/// The folder of the table of data sets: where the cache has that of a hub, the folder there.
pub fn dataset_dir(settings: &Settings) -> PathBuf {
    let word = settings.word(keys::DATASET_DIR);
    let on_hub = word.strip_prefix(REMOTE).map(|name| DataOnHub {
        what: What::Table(name.to_owned()),
        key: keys::DATASET_DIR.row,
        environment: environment(settings),
    });
    let table = on_hub.and_then(|table| table.cached());
    let dir = table.and_then(|files| files.first().and_then(|file| file.parent()).map(Path::to_path_buf));
    dir.unwrap_or_else(|| word.into())
}
