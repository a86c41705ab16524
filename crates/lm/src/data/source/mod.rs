//! The records of a data set, streamed in file order and in bounded memory.
//!
//! A data set is a name in `dataset_info.json`, a file, a folder, one of a hub whose files are here, or several of these
//! separated by commas. Knows no tokens.

#[cfg(feature = "csv")]
mod csv;
mod info;
mod json;
#[cfg(feature = "parquet")]
mod parquet;
mod parts;
mod problems;
mod remote;
mod text;

#[cfg(feature = "csv")]
pub(super) use csv::rows as csv_rows;
pub use remote::{RemoteDataset, RemoteFiles};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{Error, Result};
use super::format::{Format as RowFormat, Read};
use super::record::{Content, Record, Records};
use parts::{Files, Format, Part, files_of, unknown_format};
use problems::until_error;

/// A record with the format of its data set, where that is known.
pub(super) struct Row {
    pub(super) record: Record,
    /// Which of the data sets it is of.
    pub(super) part: usize,
    format: Option<Arc<RowFormat>>,
}

/// A stream of the rows of a data set.
pub(super) type Rows = Box<dyn Iterator<Item = Result<Row>> + Send>;

impl Row {
    /// What it means, and as which format it was read where none is written.
    pub(super) fn read(&self) -> Result<Read> {
        RowFormat::read(self.format.as_deref(), &self.record)
    }
}

/// The column of what is true or false where no entry names one.
const FLAG: &str = "kto_tag";

/// The columns that are tried, in this order, when none is named.
const DEFAULT_COLUMNS: [&str; 2] = ["text", "content"];

/// One or more data sets, read one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    parts: Vec<Part>,
}

impl Source {
    /// Finds the data sets that `dataset` names: names defined in `dataset_dir/dataset_info.json`, paths of files or
    /// folders (as they stand or inside `dataset_dir`), or a list of these separated by commas. `max_samples` keeps
    /// the first so many records of each.
    ///
    /// # Errors
    /// When a name is not defined, a file is missing or of an unknown format, or the data set lies on a hub.
    pub fn resolve(dataset: &str, dataset_dir: &Path, max_samples: Option<u64>) -> Result<Source> {
        Source::with_remote(dataset, dataset_dir, max_samples, &RemoteFiles::new())
    }

    /// The same with data sets of hubs, whose files are here.
    ///
    /// # Errors
    /// As of [`Source::resolve`], but for these.
    pub fn with_remote(
        dataset: &str,
        dataset_dir: &Path,
        max_samples: Option<u64>,
        remote: &RemoteFiles,
    ) -> Result<Source> {
        let names: Vec<&str> = dataset.split(',').map(str::trim).filter(|n| !n.is_empty()).collect();
        if names.is_empty() {
            return Err(Error::Setting {
                key: "dataset",
                cause: "Please specify dataset for training.".into(),
            });
        }
        let info = info::DatasetInfo::read(dataset_dir)?;
        let mut parts = Vec::with_capacity(names.len());
        for name in names {
            let defined = info.as_ref().and_then(|info| info.part(name, remote).transpose()).transpose()?;
            let mut part = match (defined, remote.get(name)) {
                (Some(part), _) => part,
                (None, Some(files)) => {
                    let files = files.clone();
                    Part {
                        name: name.into(),
                        files,
                        column: None,
                        limit: None,
                        format: None,
                        unread: Vec::new(),
                    }
                }
                (None, None) => {
                    let path = [PathBuf::from(name), dataset_dir.join(name)].into_iter().find(|p| p.exists());
                    let path = path.ok_or_else(|| info::undefined(name, dataset_dir, info.as_ref()))?;
                    let Files { read: files, unread } = files_of(&path, None)?;
                    Part { name: name.into(), files, column: None, limit: None, format: None, unread }
                }
            };
            part.limit = part.limit.into_iter().chain(max_samples).min();
            parts.push(part);
        }
        Ok(Source { parts })
    }

    /// What the entries of the data sets say that nothing reads, a line for each.
    pub fn unread(&self) -> impl Iterator<Item = &String> {
        self.parts.iter().flat_map(|part| &part.unread)
    }

    /// The texts of all records, as [`Source::records`].
    pub fn texts(&self) -> impl Iterator<Item = Result<String>> + Send + use<> {
        self.records(Content::Text).map(|record| Ok(record?.content))
    }

    /// All records, in order, but those whose text is null. An error ends the stream; so does a data set without any record.
    pub fn records(&self, content: Content) -> Records {
        let records = self.rows(content).map(|row| Ok(row?.record));
        Box::new(records.filter(|record| !record.as_ref().is_ok_and(Record::lacks_text)))
    }

    /// All records, each with the format of its data set.
    pub(super) fn rows(&self, content: Content) -> Rows {
        let parts = self.parts.clone();
        let stream = parts.into_iter().enumerate().flat_map(move |(index, part)| {
            let Part { name, files, column, limit, format, .. } = part;
            let shown = files.first().cloned().unwrap_or_default();
            let flag = format.as_ref().and_then(|format| format.flag().map(str::to_owned));
            let records = files.into_iter().flat_map(move |file| {
                open(&file, column.as_deref(), content, flag.as_deref().unwrap_or(FLAG))
            });
            let mut n_records = 0u64;
            let mut records = records.take(usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX));
            let mut ended = false;
            std::iter::from_fn(move || {
                let next = if ended { None } else { records.next() };
                n_records += u64::from(next.is_some());
                if next.is_none() && n_records == 0 && !ended {
                    ended = true;
                    let cause = format!("data set {name} holds no record");
                    let remedy = "give a file with text in it, and max_samples of at least 1";
                    return Some(Err(Error::file(&shown, cause, remedy)));
                }
                next.map(|record| Ok(Row { record: record?, part: index, format: format.clone() }))
            })
        });
        Box::new(until_error(stream))
    }

    /// A data set that says that its rows hold pairs of answers (`ranking`), or that they do not.
    pub(crate) fn with_ranking(&self, ranking: bool) -> Option<&str> {
        let is = |part: &&Part| part.format.as_ref().is_some_and(|format| format.is_ranking() == ranking);
        self.parts.iter().find(is).map(|part| part.name.as_str())
    }

    /// What the rows mean, by their entries.
    pub(super) fn formats(&self) -> String {
        let identity = |part: &Part| part.format.as_ref().map(|format| format.identity());
        self.parts.iter().map(|part| format!("{:?}\n", identity(part))).collect()
    }

    /// How many data sets it has.
    pub(super) fn n_parts(&self) -> usize {
        self.parts.len()
    }

    /// A short name for files that belong to this source.
    pub(crate) fn label(&self) -> String {
        let names: Vec<&str> = self.parts.iter().map(|p| p.name.as_str()).collect();
        let file = Path::new(names.first().copied().unwrap_or("data")).file_stem().unwrap_or_default();
        let more = if names.len() > 1 { format!("+{}", names.len() - 1) } else { String::new() };
        let safe = |c: char| if c.is_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
        file.to_string_lossy().chars().take(40).map(safe).chain(more.chars()).collect()
    }

    /// All files, in reading order.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().flat_map(|p| p.files.iter().map(PathBuf::as_path))
    }

    /// Everything apart from the bytes of the files that decides which texts come out.
    pub(crate) fn identity(&self) -> String {
        let mut out = String::new();
        for part in &self.parts {
            let files: Vec<PathBuf> =
                part.files.iter().map(|f| std::fs::canonicalize(f).unwrap_or_else(|_| f.clone())).collect();
            out.push_str(&format!("{files:?} {:?} {:?}\n", part.column, part.limit));
        }
        out
    }
}

/// Opens one file; a failure to open is the only item of the stream. The column `flag` holds what is true or false.
fn open(path: &Path, column: Option<&str>, content: Content, flag: &str) -> Records {
    let columns: Vec<String> = match column {
        Some(name) => vec![name.into()],
        None => DEFAULT_COLUMNS.map(String::from).into(),
    };
    #[cfg(not(feature = "csv"))]
    let _ = flag;
    let opened = match Format::of(path) {
        Some(Format::Json) => json::open(path, columns, content),
        Some(Format::Text) if content == Content::Object => Err(Error::file(
            path,
            "plain text holds no conversations",
            "give a .jsonl, .json, .csv, .tsv or .parquet file with one conversation in each record",
        )),
        Some(Format::Text) => text::open(path),
        #[cfg(feature = "csv")]
        Some(kind @ (Format::Csv | Format::Tsv)) => {
            let separator = if kind == Format::Csv { csv::COMMA } else { csv::TAB };
            match content {
                Content::Text => csv::open(path, separator, &columns),
                Content::Object => csv::objects(path, separator, flag),
            }
        }
        #[cfg(not(feature = "csv"))]
        Some(Format::Csv | Format::Tsv) => Err(without(path, "CSV", "csv")),
        #[cfg(feature = "parquet")]
        Some(Format::Parquet) => match content {
            Content::Text => parquet::open(path, &columns),
            Content::Object => parquet::objects(path),
        },
        #[cfg(not(feature = "parquet"))]
        Some(Format::Parquet) => Err(without(path, "Parquet", "parquet")),
        None => Err(unknown_format(path)),
    };
    opened.unwrap_or_else(|e| Box::new(std::iter::once(Err(e))))
}

/// A format that this build leaves out.
#[cfg(not(all(feature = "csv", feature = "parquet")))]
fn without(path: &Path, format: &str, feature: &str) -> Error {
    let remedy = format!("build oarlock with its feature `{feature}`, or give a .jsonl, .json or .txt file");
    Error::file(path, format!("this build reads no {format}"), &remedy)
}

#[cfg(test)]
mod tests;
