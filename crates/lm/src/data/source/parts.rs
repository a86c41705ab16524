//! The files of a data set, and how records stand in them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::error::{Error, Result};
use super::super::format::Format as RowFormat;

/// How records stand in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `.jsonl`, `.json`: objects one after another, or one array of objects.
    Json,
    /// `.txt`: one record a line.
    Text,
    /// `.csv`, with a header line.
    Csv,
    /// The same with tabs between fields: `.tsv`.
    Tsv,
    /// `.parquet`.
    Parquet,
}

impl Format {
    pub(super) fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "json" | "jsonl" => Some(Format::Json),
            "txt" => Some(Format::Text),
            "csv" => Some(Format::Csv),
            "tsv" => Some(Format::Tsv),
            "parquet" => Some(Format::Parquet),
            _ => None,
        }
    }
}

pub(super) fn unknown_format(path: &Path) -> Error {
    Error::file(path, "unknown data format", "give a .jsonl, .json, .txt, .csv, .tsv or .parquet file")
}

/// The files of one data set, with the column and the number of records to take from them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) files: Vec<PathBuf>,
    /// The named text column; `None` tries `DEFAULT_COLUMNS`.
    pub(super) column: Option<String>,
    /// Take only the first so many records.
    pub(super) limit: Option<u64>,
    /// What rows mean; `None` where no entry says it and each is read as its keys say.
    pub(super) format: Option<Arc<RowFormat>>,
    /// What its entry says that nothing reads, a line for each.
    pub(super) unread: Vec<String>,
}

/// The files of a data set, and lines about what else is in their folder.
pub(super) struct Files {
    pub(super) read: Vec<PathBuf>,
    pub(super) unread: Vec<String>,
}

/// Whether a file is usual beside data and holds none.
fn is_about_data(name: &str) -> bool {
    let name = name.to_lowercase();
    ["readme", "license"].iter().any(|word| name.starts_with(word))
        || [".md", ".py", ".yaml", ".yml", ".png", ".lock"].iter().any(|end| name.ends_with(end))
}

/// The data files at `path`: itself, or those of the folder in the order of their names. Of a named `split` only the
/// files called `split.*`, `split-*` or `split_*`.
pub(super) fn files_of(path: &Path, split: Option<&str>) -> Result<Files> {
    if !path.is_dir() {
        if !std::fs::metadata(path).map_err(|e| Error::read(path, e))?.is_file() {
            let remedy =
                "give a file that can be read again: its text, its size and its checksum are read one by one";
            return Err(Error::file(path, "it is a pipe or a device", remedy));
        }
        return match Format::of(path) {
            Some(_) => Ok(Files { read: vec![path.into()], unread: Vec::new() }),
            None => Err(unknown_format(path)),
        };
    }
    let (mut files, mut others) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(path).map_err(|e| Error::read(path, e))? {
        let file = entry.map_err(|e| Error::read(path, e))?.path();
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let wanted =
            split.is_none_or(|s| name.strip_prefix(s).is_some_and(|rest| rest.starts_with(['.', '-', '_'])));
        if !wanted || name.starts_with('.') || name == "dataset_info.json" {
            continue;
        }
        match Format::of(&file).is_some() && file.is_file() {
            true => files.push(file),
            false if is_about_data(&name) => {}
            false => others.push(name),
        }
    }
    files.sort();
    others.sort();
    let unread = others.iter().map(|name| {
        format!(
            "note: {} is not read; data are .jsonl, .json, .txt, .csv, .tsv and .parquet",
            path.join(name).display()
        )
    });
    match (files.is_empty(), split) {
        (false, _) => Ok(Files { read: files, unread: unread.collect() }),
        (true, None) => Err(Error::file(
            path,
            "no data file in this folder",
            "put .jsonl, .json, .txt, .csv, .tsv or .parquet files there",
        )),
        (true, Some(split)) => Err(Error::file(
            path,
            format!("no file of split {split}"),
            "name its files split.* or split-*, or drop the split",
        )),
    }
}
