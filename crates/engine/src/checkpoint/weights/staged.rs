//! The files of a model come into a folder in one go: under other names until all are on the disk, and in the place of
//! nothing but what the same writer wrote there before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{INDEX, ModelFiles, ModelWriter, WrittenFile};
use crate::disk::{Outputs, Part, RECORD, Stamp, Sum, Writer, covers, sync_folder};
use crate::report::error::Occupied;
use crate::{Error, Result};

/// The files of a model under other names until they are complete; dropping it removes them.
pub struct Staged {
    dir: PathBuf,
    files: Arc<ModelFiles>,
    token: String,
    /// What the files that are in their places were when they were found to be the writer's own.
    checked: Checked,
    published: bool,
}

impl ModelFiles {
    /// Whether they may come into the folder `dir`, before anything is written.
    ///
    /// # Errors
    /// [`Error::Occupied`] where something is in the way that their writer may not replace.
    pub fn check(&self, dir: &Path) -> Result<()> {
        check(dir, self, &Checked::new()).map(|_| ())
    }
}

/// Files that may be replaced or removed, as they were when that was found.
type Checked = BTreeMap<String, Option<Stamp>>;

impl Staged {
    /// Files for the folder `dir`, which is created where it is missing. `token` tells this save from others.
    ///
    /// # Errors
    /// [`Error::Occupied`] where something is in the way that the writer of these files may not replace; when the folder
    /// cannot be created.
    pub fn new(dir: &Path, files: Arc<ModelFiles>, token: String) -> Result<Staged> {
        let checked = check(dir, &files, &Checked::new())?;
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        Ok(Staged { dir: dir.to_path_buf(), files, token, checked, published: false })
    }

    /// Where a file lies now.
    pub fn path_of(&self, name: &str) -> PathBuf {
        staged_path(&self.dir, &self.token, name)
    }

    pub(super) fn writer(&self) -> ModelWriter {
        let (dir, token) = (self.dir.clone(), self.token.clone());
        self.files.clone().writer(move |name| staged_path(&dir, &token, name))
    }

    /// An error about a file, by the name that the file was to get.
    pub(super) fn by_final_name(&self, error: Error) -> Error {
        match error {
            Error::Io { action, path, cause } => {
                let name = self.files.names().find(|name| self.path_of(name) == path);
                Error::Io { action, path: name.map_or(path.clone(), |name| self.dir.join(name)), cause }
            }
            other => other,
        }
    }

    /// Gives all files their names and notes them in the record of the folder, then removes what the same writer left of
    /// its earlier result. `written` are the parts that were written, with their checksums.
    ///
    /// # Errors
    /// When the operating system refuses. Where something came into the way while the files were written it stays, and
    /// the files lie in a folder of their own, which the message names.
    pub fn publish(mut self, written: Vec<WrittenFile>) -> Result<()> {
        if let Err(error) = check(&self.dir, &self.files, &self.checked) {
            return Err(self.aside(error));
        }
        let mut outputs = Outputs::of(&self.dir);
        let stale = stale(&outputs, &self.files);
        let sums = summed(written);
        let part = self.files.part();
        let by = self.files.writer_of_folder().by;
        let names: Vec<&str> =
            self.files.names().filter(|name| !self.files.is_there(name, &self.dir)).collect();
        for name in &names {
            match sums.get(*name) {
                Some((bytes, sums)) if covers(sums, *bytes) => {
                    outputs.add(by, part, name, *bytes, sums.clone())
                }
                _ => outputs.add_file(by, part, name, &self.path_of(name))?,
            }
        }
        outputs.save()?;
        for name in &names {
            let path = self.dir.join(name);
            fs::rename(self.path_of(name), &path).map_err(Error::io("rename to", &path))?;
        }
        for name in &stale {
            let path = self.dir.join(name);
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
        outputs.settle(&stale);
        outputs.save()?;
        sync_folder(&self.dir)?;
        // What is there already has a copy under its other name, which goes with this value.
        self.published = names.len() == self.files.names().count();
        Ok(())
    }

    /// Puts the files into a folder of their own, so that what was trained is not lost with what is in the way.
    fn aside(&mut self, error: Error) -> Error {
        let folder = self.dir.join(format!("unpublished-{}", self.token));
        let moved = fs::create_dir(&folder).and_then(|()| {
            self.files.names().try_for_each(|name| fs::rename(self.path_of(name), folder.join(name)))
        });
        match moved {
            Ok(()) => {
                self.published = true;
                Error::Usage(format!("{error}. What was to be written is in {}", folder.display()))
            }
            Err(_) => error,
        }
    }
}

/// Where a file lies until it is complete.
pub fn staged_path(dir: &Path, token: &str, name: &str) -> PathBuf {
    dir.join(format!(".{name}.{token}.part"))
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            for name in self.files.names() {
                // What was never created needs no removal.
                let _ = fs::remove_file(self.path_of(name));
            }
        }
    }
}

/// A file in which loaders look for the weights of a model or of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultFile {
    /// All weights of a model.
    Whole,
    /// A part of them, or the index of the parts.
    Shard,
    /// Weights or settings of an adapter.
    Adapter,
    /// Weights in the format of torch.
    Pickle,
}

impl ResultFile {
    /// What a file of this name is.
    pub fn of(name: &str) -> Option<ResultFile> {
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_shard = |start: &str, end: &str| {
            let middle = name.strip_prefix(start).and_then(|name| name.strip_suffix(end));
            middle
                .and_then(|middle| middle.split_once("-of-"))
                .is_some_and(|(at, of)| is_number(at) && is_number(of))
        };
        match name {
            "model.safetensors" => Some(ResultFile::Whole),
            INDEX => Some(ResultFile::Shard),
            "adapter_model.safetensors" | "adapter_model.bin" | "adapter_config.json" => {
                Some(ResultFile::Adapter)
            }
            "pytorch_model.bin" | "pytorch_model.bin.index.json" => Some(ResultFile::Pickle),
            _ if is_shard("model-", ".safetensors") => Some(ResultFile::Shard),
            _ if is_shard("pytorch_model-", ".bin") => Some(ResultFile::Pickle),
            _ => None,
        }
    }
}

/// Whether the files may come into a folder; those that give way for them, as they are now. What has not changed since it was
/// `known` is not read again.
fn check(dir: &Path, files: &ModelFiles, known: &Checked) -> Result<Checked> {
    let (outputs, writer) = (Outputs::of(dir), files.writer_of_folder());
    let is_known = |name: &str| {
        known.get(name).is_some_and(|stamp| stamp.is_some() && *stamp == Stamp::of(&dir.join(name)))
    };
    let coming = || files.names().filter(|name| !is_known(name) && !files.is_there(name, dir));
    // The manifest of a checkpoint lists its files as they are.
    if dir.join("state/manifest.json").exists() {
        let taken = outputs.foreign(Writer { overwrites: false, ..writer }, coming());
        if !taken.is_empty() {
            return Err(Occupied::replaced(dir, taken, writer.by, true).into());
        }
    }
    outputs.refuse(writer, coming())?;
    // A loader could take another model's weights for these, or with them.
    if files.part() == Part::Model {
        let own: BTreeSet<&str> = files.names().collect();
        let by = if writer.overwrites { None } else { Some(writer.by) };
        let is_mixed = |name: &String| {
            matches!(ResultFile::of(name), Some(ResultFile::Whole | ResultFile::Shard))
                && !own.contains(name.as_str())
                && !is_known(name)
                && !outputs.is_own(by, name)
        };
        let mut mixed: Vec<String> = names(dir).filter(is_mixed).collect();
        if !mixed.is_empty() {
            mixed.sort_unstable();
            return Err(Occupied::mixed(dir, mixed, writer.by).into());
        }
    }
    let stale = stale(&outputs, files);
    let found = files.names().map(str::to_owned).chain(stale);
    Ok(found
        .map(|name| {
            let stamp = Stamp::of(&dir.join(&name));
            (name, stamp)
        })
        .collect())
}

/// The files of an earlier result that these replace as a whole: those that are still as they were written, and are none of
/// these. An adapter replaces an adapter alone, since it may need the model beside it.
fn stale(outputs: &Outputs, files: &ModelFiles) -> Vec<String> {
    let writer = files.writer_of_folder();
    let by = if writer.overwrites { None } else { Some(writer.by) };
    let parts: &[Part] = match files.part() {
        Part::Model if writer.overwrites => &[Part::Model, Part::Adapter],
        Part::Model => &[Part::Model],
        _ => &[Part::Adapter],
    };
    let own: BTreeSet<&str> = files.names().collect();
    let found = outputs.names(by, parts).into_iter().filter(|name| !own.contains(name) && *name != RECORD);
    found.filter(|name| outputs.is_own(by, name)).map(str::to_owned).collect()
}

fn names(dir: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Parts of files with their checksums, by name and in the order of the bytes.
fn summed(written: Vec<WrittenFile>) -> BTreeMap<String, (u64, Vec<Sum>)> {
    let mut files: BTreeMap<String, (u64, Vec<Sum>)> = BTreeMap::new();
    for WrittenFile { name, bytes, sums } in written {
        let file = files.entry(name).or_default();
        file.0 = bytes;
        file.1.extend(sums);
    }
    files.values_mut().for_each(|(_, sums)| sums.sort_by_key(|sum| sum.offset));
    files
}
