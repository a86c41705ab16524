//! `dataset_info.json`: what the names of data sets mean.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oarlock_config::json;
use oarlock_config::nearest::edits;
use serde_json::{Map, Value};

use super::super::error::{Error, Result};
use super::super::format::Format;
use super::parts::{Files, Part, files_of};
use super::remote::{self, RemoteDataset, RemoteFiles, TRAIN};

/// Where a data set lies that is not here; the first two are hubs that are asked.
const REMOTE_KEYS: [&str; 5] = ["hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"];
const N_HUBS: usize = 2;

/// What else an entry may say; the checksum of older files is looked at by nobody.
const KEYS: [&str; 10] = [
    "file_name",
    "folder",
    "formatting",
    "ranking",
    "columns",
    "tags",
    "num_samples",
    "split",
    "subset",
    "file_sha1",
];

/// What helps against a slice of a split.
const SLICES: &str = "the first rows are split[:N]; give num_samples, or a file of these rows";

/// The table of defined data sets.
pub(super) struct DatasetInfo {
    path: PathBuf,
    entries: Map<String, Value>,
}

impl DatasetInfo {
    /// Reads `dir/dataset_info.json`; `None` when there is none.
    pub(super) fn read(dir: &Path) -> Result<Option<DatasetInfo>> {
        let path = dir.join("dataset_info.json");
        let bytes = match oarlock_comm::read_file(&path, oarlock_comm::MAX_CONFIG_BYTES) {
            Ok(bytes) => bytes,
            Err(e)
                if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(e) => return Err(Error::read(&path, e)),
        };
        // Some editors begin files with a byte order mark.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        let entries = json::from_slice(bytes).map_err(|e| {
            Error::record(
                &path,
                e.line() as u64,
                e.to_string(),
                "the file must be one JSON object of data sets",
            )
        })?;
        Ok(Some(DatasetInfo { path, entries }))
    }

    /// The error of an entry.
    fn fail(&self, name: &str, cause: String, remedy: &str) -> Error {
        Error::Entry { name: name.into(), path: self.path.clone(), cause, remedy: remedy.into() }
    }

    /// The entry of a data set; `None` when the table does not define it.
    fn entry(&self, name: &str) -> Result<Option<&Map<String, Value>>> {
        let not_object = || self.fail(name, "not a JSON object".into(), "write {\"file_name\": \"...\"}");
        self.entries.get(name).map(|entry| entry.as_object().ok_or_else(not_object)).transpose()
    }

    /// A text of an entry, where it has one under this key.
    fn text<'e>(&self, name: &str, entry: &'e Map<String, Value>, key: &str) -> Result<Option<&'e str>> {
        match entry.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(s)) => Ok(Some(s.as_str())),
            Some(other) => Err(self.fail(name, format!("{key} is {other}"), "write it as a string")),
        }
    }

    /// Where the data set `name` lies.
    pub(super) fn remote(&self, name: &str) -> Result<remote::Entry> {
        let Some(entry) = self.entry(name)? else { return Ok(remote::Entry::None) };
        let text = |key| Ok(self.text(name, entry, key)?.map(str::to_owned));
        let [hf_hub, ms_hub] = [text("hf_hub_url")?, text("ms_hub_url")?];
        if text("file_name")?.is_some() || hf_hub.is_none() && ms_hub.is_none() {
            return Ok(remote::Entry::Local);
        }
        let split = text("split")?.unwrap_or_else(|| TRAIN.to_owned());
        let (split, _) = remote::sliced(&split).map_err(|cause| self.fail(name, cause, SLICES))?;
        Ok(remote::Entry::Remote(RemoteDataset {
            name: name.to_owned(),
            hf_hub,
            ms_hub,
            subset: text("subset")?,
            folder: text("folder")?,
            split: split.to_owned(),
        }))
    }

    /// The files of the data set `name`, of which those of hubs may be here; `None` when the table does not define it.
    pub(super) fn part(&self, name: &str, here: &RemoteFiles) -> Result<Option<Part>> {
        let Some(entry) = self.entry(name)? else { return Ok(None) };
        let fail = |cause: String, remedy: &str| self.fail(name, cause, remedy);
        let is_known = |key: &str| KEYS.contains(&key) || REMOTE_KEYS.contains(&key);
        let mut unread = Vec::new();
        for (key, value) in entry.iter().filter(|(key, value)| !is_known(key) && !value.is_null()) {
            if let Some(near) = KEYS.iter().find(|known| edits(key, known) <= 2) {
                return Err(fail(
                    format!("{key} is not a key of an entry"),
                    &format!("did you mean {near}?"),
                ));
            }
            unread.push(format!("note: {key}: {value} of {name} in {} is not read", self.path.display()));
        }
        let string = |key: &str| self.text(name, entry, key);
        let (file_name, folder) = (string("file_name")?, string("folder")?);
        let on_hub = here.get(name).filter(|_| file_name.is_none());
        if file_name.is_none() && on_hub.is_none() {
            for (index, key) in REMOTE_KEYS.into_iter().enumerate() {
                if let Some(address) = string(key)? {
                    // What can be mended here comes before the network.
                    self.remote(name)?;
                    let (name, key, address) = (name.into(), key.into(), address.into());
                    return Err(match index < N_HUBS {
                        true => Error::NotFetched { name, key, address },
                        false => Error::Remote { name, key, address },
                    });
                }
            }
        }
        // LLaMA-Factory takes what is on a hub first.
        for (key, value) in entry.iter().filter(|(key, value)| {
            file_name.is_some() && REMOTE_KEYS.contains(&key.as_str()) && !value.is_null()
        }) {
            unread.push(format!(
                "note: {key}: {value} of {name} in {} is not read, since file_name names a file here",
                self.path.display()
            ));
        }
        if file_name.is_none() && folder.is_none() && on_hub.is_none() {
            return Err(fail("no file_name".into(), "name the file or folder in file_name"));
        }
        let limit = match entry.get("num_samples") {
            None | Some(Value::Null) => None,
            Some(n) => Some(n.as_u64().filter(|&n| n > 0).ok_or_else(|| {
                fail(format!("num_samples is {n}"), "give a whole number of at least 1, or drop the key")
            })?),
        };
        let column = match entry.get("columns") {
            None | Some(Value::Null) => None,
            Some(Value::Object(columns)) => match columns.get("prompt") {
                None | Some(Value::Null) => None,
                Some(Value::String(s)) => Some(s.clone()),
                Some(other) => {
                    return Err(fail(format!("columns.prompt is {other}"), "write it as a string"));
                }
            },
            Some(other) => return Err(fail(format!("columns is {other}"), "write {\"prompt\": \"text\"}")),
        };
        let format = Format::of_entry(entry).map_err(|(cause, remedy)| fail(cause, remedy))?;
        if let Some(files) = on_hub {
            let (_, first) =
                remote::sliced(string("split")?.unwrap_or(TRAIN)).map_err(|cause| fail(cause, SLICES))?;
            let limit = limit.into_iter().chain(first).min();
            let files = files.clone();
            return Ok(Some(Part {
                name: name.into(),
                files,
                column,
                limit,
                format: Some(Arc::new(format)),
                unread,
            }));
        }
        if let Some(subset) = string("subset")? {
            unread.push(format!(
                "note: subset: {subset} of {name} in {} is not read: only data sets of a hub have some",
                self.path.display()
            ));
        }
        let mut path = self.path.parent().unwrap_or(Path::new(".")).to_path_buf();
        path.extend(folder.into_iter().chain(file_name));
        // A local file is all there is of "train"; only a folder can hold other splits.
        let split = string("split")?.filter(|&s| s != TRAIN);
        if let Some(split) = split.filter(|_| path.is_file()) {
            return Err(fail(
                format!("split {split} of a single file"),
                "name that split's own file in file_name",
            ));
        }
        if let Err(cause) = std::fs::metadata(&path) {
            let remedy = "give the file or folder in file_name, relative to dataset_dir";
            return Err(fail(format!("{}: {cause}", path.display()), remedy));
        }
        let Files { read: files, unread: beside } = files_of(&path, split)?;
        unread.extend(beside);
        Ok(Some(Part { name: name.into(), files, column, limit, format: Some(Arc::new(format)), unread }))
    }

    /// The defined names nearest to `name`, at most three.
    fn nearest(&self, name: &str) -> Vec<&str> {
        let mut near: Vec<(usize, &str)> =
            self.entries.keys().map(|k| (edits(name, k), k.as_str())).collect();
        near.retain(|&(d, k)| d <= 2 + name.chars().count() / 4 || k.contains(name) || name.contains(k));
        near.sort();
        near.into_iter().take(3).map(|(_, k)| k).collect()
    }
}

impl RemoteDataset {
    /// The data sets of `names` that lie on a hub: those whose entry in `dataset_dir/dataset_info.json` says so, and those
    /// without an entry and without a file that `is_name` takes for `OWNER/NAME`.
    ///
    /// # Errors
    /// A `dataset_info.json` that cannot be read.
    pub fn of_names(
        names: &[String],
        dataset_dir: &Path,
        is_name: impl Fn(&str) -> bool,
    ) -> Result<Vec<RemoteDataset>> {
        let info = DatasetInfo::read(dataset_dir)?;
        let mut remote = Vec::new();
        for name in names {
            match info.as_ref().map(|info| info.remote(name)).transpose()?.unwrap_or_default() {
                remote::Entry::Remote(found) => remote.push(found),
                remote::Entry::Local => {}
                remote::Entry::None if dataset_dir.join(name).exists() || !is_name(name) => {}
                remote::Entry::None => remote.push(RemoteDataset::named(name)),
            }
        }
        Ok(remote)
    }
}

/// The error for a name that is neither defined nor a path.
pub(super) fn undefined(name: &str, dataset_dir: &Path, info: Option<&DatasetInfo>) -> Error {
    let hint = match info {
        None => format!(" There is no such file, and no dataset_info.json in {}.", dataset_dir.display()),
        Some(info) => match info.nearest(name).as_slice() {
            [] => format!(" Defined in {}: {}.", info.path.display(), listed(&info.entries)),
            near => format!(" Did you mean {}?", near.join(" or ")),
        },
    };
    Error::UndefinedDataset { name: name.into(), hint }
}

fn listed(entries: &Map<String, Value>) -> String {
    const SHOWN: usize = 12;
    let names: Vec<&str> = entries.keys().take(SHOWN).map(String::as_str).collect();
    match entries.len() {
        0 => "nothing".into(),
        n if n > SHOWN => format!("{}, … ({n} in all)", names.join(", ")),
        _ => names.join(", "),
    }
}
