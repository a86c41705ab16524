//! What was written into a folder as a result, so that a later one replaces that and nothing else.
//!
//! The record lies beside the files, with the size and the checksums of each. A file is a writer's own as long as it is what
//! the record says; whatever else lies there belongs to somebody. The record is written before files get their names, and
//! names those that they replace as well: wherever a writer dies, it still knows its files.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::sums::{Algorithm, Sum};
use crate::report::error::Occupied;
use crate::{Error, Result};

/// The name of the record.
pub const RECORD: &str = "oarlock_files.json";

/// What a record calls the writer of what a program of a user saves.
pub const A_PROGRAM: &str = "save of a program";

/// The most bytes of a record; one that is larger is none of ours.
const MOST_BYTES: u64 = 16 << 20;

/// Who writes a result, and whether it may replace what it did not write itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The command or the function, such as `oarlock train`.
    pub by: &'static str,
    /// Whether files that it did not write, or that were changed since, may be replaced.
    pub overwrites: bool,
}

/// The result that a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// A whole model.
    Model,
    /// An adapter.
    Adapter,
    /// What grows or changes while its writer works, and is known by its name alone.
    Log,
    /// Anything else.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    name: String,
    by: String,
    part: Part,
    /// Nothing of a file that is known by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sums: Vec<Sum>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    version: u64,
    files: Vec<Entry>,
}

/// The record of a folder.
#[derive(Clone, Debug)]
pub struct Outputs {
    dir: PathBuf,
    /// Several of one name while a file is replaced.
    entries: Vec<Entry>,
    /// Whether something lies in the place of the record that is none.
    is_taken: bool,
}

impl Outputs {
    /// Reads the record of a folder. One that is missing or cannot be read says nothing: then nothing in the folder is known.
    pub fn of(dir: &Path) -> Outputs {
        let path = dir.join(RECORD);
        let entries = read(&path);
        let is_taken = entries.is_none() && fs::symlink_metadata(&path).is_ok();
        let entries = entries.unwrap_or_default();
        // A record of somebody else is never to lead out of the folder.
        let is_inside = |entry: &Entry| Path::new(&entry.name).file_name() == Some(entry.name.as_ref());
        let entries = entries.into_iter().filter(is_inside).collect();
        Outputs { dir: dir.to_path_buf(), entries, is_taken }
    }

    /// Whether a file is there that `by` wrote, as it was written; anybody's where `by` is `None`.
    pub fn is_own(&self, by: Option<&str>, name: &str) -> bool {
        let path = self.dir.join(name);
        let mut of_name = self.entries.iter().filter(|entry| entry.name == name);
        of_name.any(|entry| by.is_none_or(|by| entry.by == by) && is_as_written(&path, entry))
    }

    /// The names of what `by` wrote for these results, in order; whether it still lies there is another question.
    pub fn names(&self, by: Option<&str>, parts: &[Part]) -> BTreeSet<&str> {
        let found = self.entries.iter();
        let found = found.filter(|entry| by.is_none_or(|by| entry.by == by) && parts.contains(&entry.part));
        found.map(|entry| entry.name.as_str()).collect()
    }

    /// Those of the names that are taken by something that a writer may not replace.
    pub fn foreign(&self, writer: Writer, names: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<String> {
        let names = names.into_iter().map(|name| name.as_ref().to_owned());
        let is_foreign = |name: &String| match fs::symlink_metadata(self.dir.join(name)) {
            // What is not a file is never replaced.
            Ok(found) if found.is_dir() => true,
            Ok(_) => !writer.overwrites && !self.is_own(Some(writer.by), name),
            // Whatever else is wrong with the folder is told when something is written into it.
            Err(_) => false,
        };
        let record = (self.is_taken && !writer.overwrites).then(|| RECORD.to_owned());
        names.filter(is_foreign).chain(record).collect()
    }

    /// Notes a file that is written or about to get its name, beside what the record says of an earlier one of the name.
    pub fn add(&mut self, by: &str, part: Part, name: &str, bytes: u64, sums: Vec<Sum>) {
        let (name, by) = (name.to_owned(), by.to_owned());
        self.entries.push(Entry { name, by, part, bytes: Some(bytes), sums });
    }

    /// Notes a file that lies at `path`, and is or is about to be called `name`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn add_file(&mut self, by: &str, part: Part, name: &str, path: &Path) -> Result<()> {
        let read = || {
            let file = oarlock_comm::open_file(path)?;
            let bytes = file.metadata()?.len();
            let hash = Algorithm::Xxh3.of_file(&file, 0, bytes)?;
            Ok((bytes, if bytes == 0 { Vec::new() } else { vec![Sum { offset: 0, bytes, hash }] }))
        };
        let (bytes, sums) = read().map_err(Error::io("read", path))?;
        self.add(by, part, name, bytes, sums);
        Ok(())
    }

    /// Notes files that change while `by` works.
    pub fn add_logs(&mut self, by: &str, names: impl IntoIterator<Item = impl Into<String>>) {
        for name in names.into_iter().map(Into::into) {
            let entry = Entry { name, by: by.to_owned(), part: Part::Log, bytes: None, sums: Vec::new() };
            if !self.entries.contains(&entry) {
                self.entries.retain(|other| other.name != entry.name);
                self.entries.push(entry);
            }
        }
    }

    /// Keeps of each name what was noted last, for files that have been replaced, and nothing of names that are `gone`.
    pub fn settle(&mut self, gone: &[String]) {
        let mut known = BTreeSet::new();
        let entries = std::mem::take(&mut self.entries).into_iter().rev();
        self.entries = entries.filter(|entry| known.insert(entry.name.clone())).collect();
        self.entries.reverse();
        self.entries.retain(|entry| !gone.contains(&entry.name));
    }

    /// Writes the record.
    ///
    /// # Errors
    /// When it cannot be written; the earlier one is then as it was.
    pub fn save(&self) -> Result<()> {
        let path = self.dir.join(RECORD);
        let record = Record { version: 1, files: self.entries.clone() };
        let text = serde_json::to_string_pretty(&record)
            .map_err(|error| Error::bad_file(&path, error.to_string()))?;
        oarlock_files::replace(&path, text + "\n").map_err(Error::io("write", &path))
    }

    /// Replaces files of a writer by these texts, and notes them. The folder is made where it is missing.
    ///
    /// # Errors
    /// [`Error::Occupied`] where something is in their place that it may not replace; a file that cannot be written.
    pub fn write(dir: &Path, writer: Writer, texts: &[(&str, &[u8])]) -> Result<()> {
        let mut outputs = Outputs::of(dir);
        outputs.refuse(writer, texts.iter().map(|(name, _)| *name))?;
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        for (name, text) in texts {
            let sums = if text.is_empty() { Vec::new() } else { vec![Sum::of(0, text)] };
            outputs.add(writer.by, Part::Other, name, text.len() as u64, sums);
        }
        outputs.save()?;
        for (name, text) in texts {
            let path = dir.join(name);
            oarlock_files::replace(&path, text).map_err(Error::io("write", &path))?;
        }
        outputs.settle(&[]);
        outputs.save()
    }

    /// # Errors
    /// [`Error::Occupied`] where a name is taken by something that a writer may not replace.
    pub fn refuse(&self, writer: Writer, names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<()> {
        let files = self.foreign(writer, names);
        match files.is_empty() {
            true => Ok(()),
            false => Err(Occupied::replaced(&self.dir, files, writer.by, writer.overwrites).into()),
        }
    }
}

fn read(path: &Path) -> Option<Vec<Entry>> {
    let file = oarlock_comm::open_file(path).ok().filter(|_| is_file(path))?;
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    let record: Record = serde_json::from_str(&text).ok()?;
    (record.version == 1).then_some(record.files)
}

/// Whether a file itself lies there, not a link to one.
fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

/// Whether a file is what an entry says. What cannot be read is not known to be.
fn is_as_written(path: &Path, entry: &Entry) -> bool {
    if !is_file(path) {
        return false;
    }
    let Some(bytes) = entry.bytes else { return true };
    let Ok(file) = oarlock_comm::open_file(path) else { return false };
    let is_whole = file.metadata().is_ok_and(|found| found.len() == bytes) && covers(&entry.sums, bytes);
    let is_same =
        |sum: &Sum| Algorithm::Xxh3.of_file(&file, sum.offset, sum.bytes).is_ok_and(|hash| hash == sum.hash);
    is_whole && entry.sums.iter().all(is_same)
}

/// Whether checksums, in order, are those of all bytes of a file.
pub fn covers(sums: &[Sum], bytes: u64) -> bool {
    let mut at = 0;
    let follows = |sum: &Sum| sum.offset == std::mem::replace(&mut at, sum.end());
    sums.iter().all(follows) && at == bytes
}

/// What a file was when it was looked at: another one, or one that was written to, differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp([i128; 5]);

impl Stamp {
    /// Of the file at a path; nothing where there is none.
    pub fn of(path: &Path) -> Option<Stamp> {
        let of = |found: Metadata| {
            let changed = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
            let written = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
            Stamp([found.dev().into(), found.ino().into(), found.len().into(), written, changed])
        };
        fs::symlink_metadata(path).ok().map(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: Writer = Writer { by: "a test", overwrites: false };
    const OVERWRITES: Writer = Writer { by: "a test", overwrites: true };

    #[test]
    fn a_file_is_own_until_somebody_changes_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        Outputs::write(dir, WRITER, &[("a.json", b"one"), ("empty", b"")]).unwrap();
        Outputs::write(dir, WRITER, &[("a.json", b"two")]).unwrap();
        assert_eq!(fs::read(dir.join("a.json")).unwrap(), b"two");
        assert!(Outputs::of(dir).is_own(Some("a test"), "empty"));
        // Another command did not write it.
        let other = Writer { by: "another", ..WRITER };
        let message = Outputs::write(dir, other, &[("a.json", b"three")]).unwrap_err().to_string();
        assert!(message.contains("a.json") && message.contains("another"), "{message}");
        // Of the same size, and elsewhere a file grown or replaced by a link or a folder.
        for change in 0..4 {
            Outputs::write(dir, OVERWRITES, &[("a.json", b"two")]).unwrap();
            match change {
                0 => fs::write(dir.join("a.json"), "tow").unwrap(),
                1 => fs::write(dir.join("a.json"), "two.").unwrap(),
                2 => {
                    fs::rename(dir.join("a.json"), dir.join("elsewhere")).unwrap();
                    std::os::unix::fs::symlink("elsewhere", dir.join("a.json")).unwrap();
                }
                _ => {
                    fs::remove_file(dir.join("a.json")).unwrap();
                    fs::create_dir(dir.join("a.json")).unwrap();
                }
            }
            let error = Outputs::write(dir, WRITER, &[("new", b""), ("a.json", b"four")]).unwrap_err();
            assert!(matches!(error, Error::Occupied(_)), "{change}: {error}");
            assert!(!dir.join("new").exists(), "{change}: written in part");
        }
        assert!(Outputs::write(dir, OVERWRITES, &[("a.json", b"four")]).is_err(), "a folder is not a file");
        assert_eq!(fs::read(dir.join("elsewhere")).unwrap(), b"two");
    }

    #[test]
    fn a_record_of_somebody_else_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("inside");
        fs::create_dir(&inside).unwrap();
        fs::write(dir.path().join("precious"), "").unwrap();
        for name in ["../precious", "..", ".", "", "/etc/passwd", "a/b"] {
            let mut outputs = Outputs::of(&inside);
            outputs.add("a test", Part::Model, name, 0, Vec::new());
            outputs.save().unwrap();
            let outputs = Outputs::of(&inside);
            assert!(outputs.names(None, &[Part::Model]).is_empty() && !outputs.is_own(None, name), "{name}");
        }
        for text in ["", "{", "{\"version\": 2, \"files\": []}", "[]", "\u{0}"] {
            fs::write(inside.join(RECORD), text).unwrap();
            assert!(Outputs::of(&inside).entries.is_empty());
        }
    }

    #[test]
    fn sums_cover_a_file_or_do_not() {
        let sum = |offset, bytes| Sum { offset, bytes, hash: String::new() };
        assert!(covers(&[], 0) && covers(&[sum(0, 3), sum(3, 2)], 5));
        assert!(!covers(&[], 1) && !covers(&[sum(0, 3)], 5) && !covers(&[sum(1, 4)], 5));
        assert!(!covers(&[sum(0, 3), sum(2, 3)], 5) && !covers(&[sum(0, 3), sum(3, 3)], 5));
    }
}
