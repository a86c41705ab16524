//! CSV with a header line: the fields of the text column.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use csv::{ErrorKind, Position, Reader, ReaderBuilder, StringRecord};

use super::super::error::{Error, Result};
use super::{REENCODE, Record, Records, missing_column};

/// Streams the first of `columns` that the header names.
pub(super) fn open(path: &Path, columns: &[String]) -> Result<Records> {
    let file = File::open(path).map_err(|e| Error::read(path, e))?;
    let mut reader: Reader<_> = ReaderBuilder::new().from_reader(BufReader::with_capacity(1 << 18, file));
    let header = reader.headers().map_err(|e| explain(path, e))?;
    let names: Vec<String> = header.iter().map(|n| n.trim_start_matches('\u{feff}').to_owned()).collect();
    if names.is_empty() {
        return Ok(Box::new(std::iter::empty()));
    }
    let column = columns.iter().find_map(|c| names.iter().position(|n| n == c));
    let column = column.ok_or_else(|| missing_column(path, 1, columns, &names))?;
    let file: Arc<Path> = path.into();
    let mut row = StringRecord::new();
    Ok(Box::new(std::iter::from_fn(move || match reader.read_record(&mut row) {
        Ok(false) => None,
        Ok(true) => Some(Ok(Record {
            file: file.clone(),
            line: row.position().map_or(1, Position::line),
            content: row.get(column).unwrap_or_default().to_owned(),
        })),
        Err(e) => Some(Err(explain(&file, e))),
    })))
}

fn explain(path: &Path, error: csv::Error) -> Error {
    let line = error.position().map_or(1, Position::line);
    match error.into_kind() {
        ErrorKind::Io(e) => Error::read(path, e),
        ErrorKind::Utf8 { err, .. } => {
            let cause = format!("invalid UTF-8 in field {}", err.field() + 1);
            Error::record(path, line, cause, REENCODE)
        }
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            let cause = format!("{len} fields where the header has {expected_len}");
            Error::record(path, line, cause, "put fields with commas or line ends between double quotes")
        }
        other => Error::record(path, line, format!("{other:?}"), "repair or remove the record"),
    }
}
