//! The records of a data set, streamed in file order and in bounded memory.
//!
//! A data set is a name in `dataset_info.json`, a file, a folder, or several of these separated by commas. Knows no
//! tokens.

#[cfg(feature = "csv")]
mod csv;
mod info;
mod json;
#[cfg(feature = "parquet")]
mod parquet;
mod text;

#[cfg(feature = "csv")]
pub(super) use csv::rows as csv_rows;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::error::{Error, Result};
use super::format::{Format as RowFormat, Read};

/// A stream of the records of a data set.
pub type Records = Box<dyn Iterator<Item = Result<Record>> + Send>;

/// One record of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The file that holds it.
    pub file: Arc<Path>,
    /// Its first line, counted from 1 (in a Parquet file its row).
    pub line: u64,
    /// What was read of it.
    pub content: String,
    /// Whether its text is null.
    lacks_text: bool,
    /// A key that stands twice in it with two values, of which the last counts, as in Python.
    twice: Option<String>,
}

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

/// What is read of each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The text in the text column.
    Text,
    /// The whole record as a JSON object.
    Object,
}

impl Record {
    pub(super) fn new(file: &Arc<Path>, line: u64, content: String) -> Record {
        Record { file: file.clone(), line, content, lacks_text: false, twice: None }
    }

    /// A record whose text is null.
    fn without_text(file: &Arc<Path>, line: u64) -> Record {
        Record { lacks_text: true, ..Record::new(file, line, String::new()) }
    }

    /// Whether its text is null, so that there is nothing to learn in it.
    pub(super) fn lacks_text(&self) -> bool {
        self.lacks_text
    }

    /// What of it is not read.
    pub(super) fn unread(&self) -> Option<String> {
        Some(format!("the first value of \"{}\", which stands twice in a record,", self.twice.as_ref()?))
    }

    /// The error of a record that cannot be used.
    pub(super) fn error(&self, cause: impl Into<String>, remedy: &str) -> Error {
        Error::record(&self.file, self.line, cause, remedy)
    }

    /// The error of a record that is not JSON, or not the JSON that was expected.
    pub(super) fn json_error(&self, error: &serde_json::Error) -> Error {
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or(&what);
        let mut remedy = "repair or remove the record";
        let cause = match error.classify() {
            serde_json::error::Category::Data => what.to_owned(),
            _ => {
                let line = self.content.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
                let rest = line.get(error.column().saturating_sub(1)..).unwrap_or_default();
                let python = ["NaN", "Infinity"].into_iter().find(|word| rest.starts_with(word));
                let what = match python {
                    Some(word) => format!("{word} is not a value of JSON, write null"),
                    None if what == "trailing characters" && rest.starts_with('{') => {
                        remedy = "write each object on a line of its own";
                        "another object follows in the same line".to_owned()
                    }
                    None => what.to_owned(),
                };
                if error.is_eof() {
                    remedy = "repair or remove the record; where the first object of a file stands on one line, all do";
                }
                format!("broken JSON at column {}: {what}", error.column())
            }
        };
        let line = self.line + error.line().saturating_sub(1) as u64;
        Error::record(&self.file, line, cause, remedy)
    }
}

/// The column of what is true or false where no entry names one.
const FLAG: &str = "kto_tag";

/// The columns that are tried, in this order, when none is named.
const DEFAULT_COLUMNS: [&str; 2] = ["text", "content"];

/// Longer records are taken for a broken file; the bound keeps memory bounded.
const MAX_RECORD_BYTES: u64 = 1 << 28;

/// What to do about a record that is not valid UTF-8.
const REENCODE: &str = "save the file as UTF-8";

/// How records stand in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
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
    fn of(path: &Path) -> Option<Format> {
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

/// The files of one data set, with the column and the number of records to take from them.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    name: String,
    files: Vec<PathBuf>,
    /// The named text column; `None` tries `DEFAULT_COLUMNS`.
    column: Option<String>,
    /// Take only the first so many records.
    limit: Option<u64>,
    /// What rows mean; `None` where no entry says it and each is read as its keys say.
    format: Option<Arc<RowFormat>>,
    /// What its entry says that nothing reads, a line for each.
    unread: Vec<String>,
}

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
    /// When a name is not defined, a file is missing or of an unknown format, or the data set lives on a hub.
    pub fn resolve(dataset: &str, dataset_dir: &Path, max_samples: Option<u64>) -> Result<Source> {
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
            let mut part = match info.as_ref().and_then(|info| info.part(name).transpose()).transpose()? {
                Some(part) => part,
                None => {
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

/// Passes items on up to and including the first error.
fn until_error<T>(stream: impl Iterator<Item = Result<T>>) -> impl Iterator<Item = Result<T>> {
    stream.scan(false, |failed, item| {
        if *failed {
            return None;
        }
        *failed = item.is_err();
        Some(item)
    })
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

fn unknown_format(path: &Path) -> Error {
    Error::file(path, "unknown data format", "give a .jsonl, .json, .txt, .csv, .tsv or .parquet file")
}

/// The files of a data set, and lines about what else is in their folder.
struct Files {
    read: Vec<PathBuf>,
    unread: Vec<String>,
}

/// Whether a file is usual beside data and holds none.
fn is_about_data(name: &str) -> bool {
    let name = name.to_lowercase();
    ["readme", "license"].iter().any(|word| name.starts_with(word))
        || [".md", ".py", ".yaml", ".yml", ".png", ".lock"].iter().any(|end| name.ends_with(end))
}

/// The data files at `path`: itself, or those of the folder in the order of their names. Of a named `split` only the
/// files called `split.*`, `split-*` or `split_*`.
fn files_of(path: &Path, split: Option<&str>) -> Result<Files> {
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

/// What to do about a missing text column.
const NAME_COLUMN: &str = "name the text column in dataset_info.json: \"columns\": {\"prompt\": \"...\"}";

/// The error for a record or file without the text column.
#[cfg(any(feature = "csv", feature = "parquet"))]
fn missing_column(path: &Path, line: u64, wanted: &[String], found: &[String]) -> Error {
    Error::record(path, line, no_column(wanted, found), NAME_COLUMN)
}

/// Columns that an error lists.
const LISTED: usize = 40;

fn no_column(wanted: &[String], found: &[String]) -> String {
    match found {
        [] => format!("no column {}: there are no columns", quoted(wanted, " or ")),
        found if found.len() > LISTED => format!(
            "no column {}; the first of {} columns are {}",
            quoted(wanted, " or "),
            found.len(),
            quoted(&found[..LISTED], ", ")
        ),
        found => format!("no column {}; the columns are {}", quoted(wanted, " or "), quoted(found, ", ")),
    }
}

/// The remedy for an object that does not have the columns of a record. One around the records has them in a field.
pub(super) fn or_unwrap(remedy: &str, object: &Map<String, Value>) -> String {
    let holds_records = |value: &Value| {
        value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_object))
    };
    match object.iter().find(|(_, value)| holds_records(value)) {
        Some((name, _)) => {
            format!("{remedy}; or, where \"{name}\" is the list of the records, write that list alone")
        }
        None => remedy.to_owned(),
    }
}

/// The error for a text column that holds something else.
fn wrong_type(path: &Path, line: u64, column: &str, found: &str) -> Error {
    let cause = format!("column \"{column}\" holds {found} where a string is expected");
    Error::record(
        path,
        line,
        cause,
        "write the text as a string, each in a record of its own, or remove the record",
    )
}

fn quoted(names: &[String], separator: &str) -> String {
    const SHOWN: usize = 12;
    let mut out: Vec<String> = names.iter().take(SHOWN).map(|n| format!("\"{n}\"")).collect();
    if names.len() > SHOWN {
        out.push(format!("… ({} in all)", names.len()));
    }
    out.join(separator)
}

#[cfg(test)]
mod tests;
