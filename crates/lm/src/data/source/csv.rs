//! CSV and TSV with a header line: the fields of the text column, or whole rows as JSON objects.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use csv::{ErrorKind, Position, Reader, ReaderBuilder, StringRecord};
use serde_json::{Map, Value};

use super::super::error::{Error, Result};
use super::super::record::{Record, Records};
use super::problems::{MAX_RECORD_BYTES, REENCODE, missing_column};

/// What separates the fields of a line of `.csv`, and of `.tsv`.
pub(super) const COMMA: u8 = b',';
pub(super) const TAB: u8 = b'\t';

/// Streams the first of `columns` that the header names.
pub(super) fn open(path: &Path, separator: u8, columns: &[String]) -> Result<Records> {
    let (reader, names) = begin(path, separator)?;
    if names.is_empty() {
        return Ok(Box::new(std::iter::empty()));
    }
    let column = columns.iter().find_map(|c| names.iter().position(|n| n == c));
    let column = column.ok_or_else(|| missing_column(path, 1, columns, &names))?;
    Ok(records(path, reader, move |row| row.get(column).unwrap_or_default().to_owned()))
}

/// Streams whole rows, each as a JSON object of texts; an empty field is null. What the column `flag` holds are booleans, for
/// which these files have no form of their own.
pub(super) fn objects(path: &Path, separator: u8, flag: &str) -> Result<Records> {
    let (reader, names) = begin(path, separator)?;
    let flag = flag.to_owned();
    Ok(records(path, reader, move |row| {
        let value = |(name, field): (&String, &str)| {
            let value = match field.to_ascii_lowercase().as_str() {
                "" => Value::Null,
                "true" if *name == flag => true.into(),
                "false" if *name == flag => false.into(),
                _ => field.into(),
            };
            (name.clone(), value)
        };
        Value::Object(names.iter().zip(row).map(value).collect::<Map<String, Value>>()).to_string()
    }))
}

/// The file behind its header, and the names in that.
fn begin(path: &Path, separator: u8) -> Result<(Reader<Quotes<File>>, Vec<String>)> {
    let file = oarlock_comm::open_file(path).map_err(|e| Error::read(path, e))?;
    let mut reader = ReaderBuilder::new()
        .delimiter(separator)
        .buffer_capacity(1 << 18)
        .from_reader(Quotes::new(path, separator, file));
    let header = reader.headers().map_err(|e| explain(path, e))?;
    let names = header.iter().map(|n| n.trim_start_matches('\u{feff}'));
    let names = distinct(names);
    Ok((reader, names))
}

/// A name that stands several times as pandas has it: the second `text` is `text.1`, so that the first is the column of that
/// name.
fn distinct<'a>(header: impl Iterator<Item = &'a str>) -> Vec<String> {
    let (mut names, mut taken) = (Vec::new(), HashSet::new());
    // The number that is next for a name: a header may have a million columns of one.
    let mut next: HashMap<&str, u64> = HashMap::new();
    for name in header {
        let mut free = name.to_owned();
        while taken.contains(&free) {
            let n = next.entry(name).or_insert(1);
            free = format!("{name}.{n}");
            *n += 1;
        }
        taken.insert(free.clone());
        names.push(free);
    }
    names
}

fn records(
    path: &Path,
    mut reader: Reader<Quotes<File>>,
    content: impl Fn(&StringRecord) -> String + Send + 'static,
) -> Records {
    let file: Arc<Path> = path.into();
    let mut row = StringRecord::new();
    Box::new(std::iter::from_fn(move || match reader.read_record(&mut row) {
        Ok(false) => None,
        Ok(true) => Some(Ok(Record::new(&file, row.position().map_or(1, Position::line), content(&row)))),
        Err(e) => Some(Err(explain(&file, e))),
    }))
}

/// All rows with their lines, as they are: no row is a header.
pub(in super::super) fn rows(path: &Path) -> Result<Vec<(u64, Vec<String>)>> {
    let file = oarlock_comm::open_file(path).map_err(|e| Error::read(path, e))?;
    let mut builder = ReaderBuilder::new();
    let reader = builder.has_headers(false).flexible(true).from_reader(Quotes::new(path, COMMA, file));
    let read = |row: std::result::Result<StringRecord, csv::Error>| {
        let row = row.map_err(|e| explain(path, e))?;
        let line = row.position().map_or(1, Position::line);
        Ok((line, row.iter().map(|field| field.trim_start_matches('\u{feff}').to_owned()).collect()))
    };
    reader.into_records().map(read).collect()
}

fn explain(path: &Path, error: csv::Error) -> Error {
    let line = error.position().map_or(1, Position::line);
    match error.into_kind() {
        ErrorKind::Io(e) => e.downcast().unwrap_or_else(|e| Error::read(path, e)),
        ErrorKind::Utf8 { err, .. } => {
            let cause = format!("invalid UTF-8 in field {}", err.field() + 1);
            Error::record(path, line, cause, REENCODE)
        }
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            let cause = format!("{len} fields where the header has {expected_len}");
            Error::record(path, line, cause, "put fields with separators or line ends between double quotes")
        }
        other => Error::record(path, line, format!("{other:?}"), "repair or remove the record"),
    }
}

/// Follows the quotes of a file while the parser reads it. Of a quote that never closes the parser would take the rest of
/// the file for a field, without a word.
struct Quotes<R> {
    file: R,
    path: Arc<Path>,
    separator: u8,
    place: Place,
    /// The line of the next byte, from 1.
    line: u64,
    /// The line of the last quote that opened a field.
    opened: u64,
    /// The bytes of the record so far.
    n_bytes: u64,
}

/// Where a byte stands, as the parser sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the first bytes of the file, which may be a byte order mark.
    FileStart,
    FieldStart,
    Field,
    Quoted,
    /// Behind a quote in a quoted field: the field has ended, or another quote follows and both mean one.
    AfterQuote,
}

impl<R> Quotes<R> {
    fn new(path: &Path, separator: u8, file: R) -> Quotes<R> {
        let place = Place::FileStart;
        Quotes { file, path: path.into(), separator, place, line: 1, opened: 0, n_bytes: 0 }
    }

    fn follow(&mut self, byte: u8) {
        self.n_bytes += 1;
        self.place = match (self.place, byte) {
            (Place::Quoted, b'"') => Place::AfterQuote,
            (Place::Quoted, _) | (Place::AfterQuote, b'"') => Place::Quoted,
            (_, byte) if byte == self.separator => Place::FieldStart,
            (_, b'\n' | b'\r') => {
                self.n_bytes = 0;
                Place::FieldStart
            }
            (Place::FieldStart | Place::FileStart, b'"') => {
                self.opened = self.line;
                Place::Quoted
            }
            (Place::FileStart, 0xef | 0xbb | 0xbf) => Place::FileStart,
            _ => Place::Field,
        };
        self.line += u64::from(byte == b'\n');
    }

    /// What is wrong with the record so far, if it ends here or goes on without end.
    fn check(&self, at_end: bool) -> io::Result<()> {
        let too_long = self.n_bytes > MAX_RECORD_BYTES;
        let (line, cause, remedy) = match self.place {
            Place::Quoted if at_end || too_long => (
                self.opened,
                "a quote opens a field in this line and is not closed".to_owned(),
                "close the field with a quote, and write a quote inside of it twice",
            ),
            _ if too_long => {
                let cause = format!("a record of more than {} MiB", MAX_RECORD_BYTES >> 20);
                (self.line, cause, "put one record on each line")
            }
            _ => return Ok(()),
        };
        Err(io::Error::other(Error::record(&self.path, line, cause, remedy)))
    }
}

impl<R: Read> Read for Quotes<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(out)?;
        out[..n].iter().for_each(|&byte| self.follow(byte));
        self.check(n == 0)?;
        Ok(n)
    }
}
