//! Parquet: the strings of one column, a row group at a time, or whole rows as JSON objects.

mod file;

use std::path::Path;
use std::sync::Arc;

use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::reader::FileReader;
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use serde_json::{Map, Value, json};

use file::ParquetFile;

use super::super::error::{Error, Result};
use super::super::fence::fenced;
use super::super::record::{Record, Records};
use super::problems::{missing_column, until_error, wrong_type};
use super::text::utf8;

/// Rows decoded at a time.
const BATCH_ROWS: usize = 256;

/// Streams the first of `columns` that the schema names.
pub(super) fn open(path: &Path, columns: &[String]) -> Result<Records> {
    let file = oarlock_comm::open_file(path).map_err(|e| Error::read(path, e))?;
    if file.metadata().map_err(|e| Error::read(path, e))?.len() == 0 {
        return Ok(Box::new(std::iter::empty()));
    }
    let reader = guarded(path, || ParquetFile::new(file))?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let names: Vec<String> = schema.root_schema().get_fields().iter().map(|f| f.name().to_owned()).collect();
    let name =
        columns.iter().find(|c| names.contains(c)).ok_or_else(|| missing_column(path, 1, columns, &names))?;
    let leaf = schema.columns().iter().position(|c| c.path().parts() == [name.as_str()]);
    let flat = leaf.filter(|&i| {
        let column = schema.column(i);
        column.physical_type() == Type::BYTE_ARRAY && column.max_rep_level() == 0
    });
    let Some(column) = flat else {
        let found =
            leaf.map_or_else(|| "a nested value".into(), |i| schema.column(i).physical_type().to_string());
        return Err(wrong_type(path, 1, name, &found));
    };
    let optional = schema.column(column).max_def_level() > 0;
    Ok(Box::new(Rows {
        path: path.into(),
        name: name.clone(),
        column,
        optional,
        n_groups: reader.num_row_groups(),
        reader,
        group: 0,
        pages: None,
        batch: Vec::new().into_iter(),
        row: 0,
        failed: false,
    }))
}

/// Streams whole rows, each as a JSON object; lists and structs may be nested.
pub(super) fn objects(path: &Path) -> Result<Records> {
    let file = oarlock_comm::open_file(path).map_err(|e| Error::read(path, e))?;
    if file.metadata().map_err(|e| Error::read(path, e))?.len() == 0 {
        return Ok(Box::new(std::iter::empty()));
    }
    let reader = guarded(path, || ParquetFile::new(file))?;
    let mut rows = guarded(path, || Ok(RowIter::from_file_into(Box::new(reader))))?;
    let (path, mut line): (Arc<Path>, u64) = (path.into(), 0);
    let next = move || {
        let row = guarded(&path, || rows.next().transpose()).transpose()?;
        line += 1;
        Some(row.map(|row| Record::new(&path, line, object(row).to_string())))
    };
    Ok(Box::new(until_error(std::iter::from_fn(next))))
}

fn object(row: Row) -> Value {
    let fields = row.into_columns().into_iter().map(|(name, field)| (name, value(&field)));
    Value::Object(fields.collect())
}

/// A field as JSON. Of one that is not a text it is enough to know that it is there.
fn value(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => json!(value),
        Field::Byte(value) => json!(value),
        Field::Short(value) => json!(value),
        Field::Int(value) => json!(value),
        Field::Long(value) => json!(value),
        Field::UByte(value) => json!(value),
        Field::UShort(value) => json!(value),
        Field::UInt(value) => json!(value),
        Field::ULong(value) => json!(value),
        Field::Float(value) => json!(value),
        Field::Double(value) => json!(value),
        Field::Str(text) => json!(text),
        // Some writers do not say that their strings are text.
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => json!(text),
            Err(_) => json!({"bytes": bytes.len()}),
        },
        Field::Group(row) => {
            Value::Object(row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect())
        }
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        Field::MapInternal(map) => {
            let named = map.entries().iter().map(|(key, field)| {
                let name = match key {
                    Field::Str(name) => name.clone(),
                    other => other.to_string(),
                };
                (name, value(field))
            });
            Value::Object(named.collect::<Map<String, Value>>())
        }
        Field::Float16(_)
        | Field::Decimal(_)
        | Field::Date(_)
        | Field::TimeMillis(_)
        | Field::TimeMicros(_)
        | Field::TimestampMillis(_)
        | Field::TimestampMicros(_) => json!(field.to_string()),
    }
}

/// Runs the decoder; its errors and its panics on damaged input become ours.
fn guarded<T>(path: &Path, f: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T> {
    let remedy = "write the file again; snappy, zstd, gzip and no compression can be read";
    match fenced(f) {
        Some(Ok(value)) => Ok(value),
        Some(Err(e)) => Err(Error::file(path, format!("broken Parquet: {e}"), remedy)),
        None => Err(Error::file(path, "broken Parquet: the decoder gave up", remedy)),
    }
}

struct Rows {
    path: Arc<Path>,
    name: String,
    column: usize,
    optional: bool,
    n_groups: usize,
    reader: ParquetFile,
    group: usize,
    pages: Option<ColumnReaderImpl<ByteArrayType>>,
    batch: std::vec::IntoIter<Option<ByteArray>>,
    row: u64,
    failed: bool,
}

impl Rows {
    /// Decodes the next rows; `false` at the end of the file.
    fn refill(&mut self) -> Result<bool> {
        loop {
            if self.pages.is_none() {
                if self.group == self.n_groups {
                    return Ok(false);
                }
                let (reader, group, column) = (&self.reader, self.group, self.column);
                let pages = guarded(&self.path, || reader.get_row_group(group)?.get_column_reader(column))?;
                let ColumnReader::ByteArrayColumnReader(pages) = pages else {
                    return Err(wrong_type(&self.path, self.row + 1, &self.name, "no strings"));
                };
                self.pages = Some(pages);
                self.group += 1;
            }
            let Some(pages) = self.pages.as_mut() else { continue };
            let (mut values, mut levels) = (Vec::new(), Vec::new());
            let optional = self.optional;
            let (n_rows, ..) = guarded(&self.path, || {
                pages.read_records(BATCH_ROWS, optional.then_some(&mut levels), None, &mut values)
            })?;
            if n_rows == 0 {
                self.pages = None;
                continue;
            }
            let mut values = values.into_iter();
            let rows: Vec<Option<ByteArray>> = if optional {
                levels.iter().map(|&level| if level > 0 { values.next() } else { None }).collect()
            } else {
                values.map(Some).collect()
            };
            self.batch = rows.into_iter();
            return Ok(true);
        }
    }

    fn record(&mut self) -> Result<Option<Record>> {
        loop {
            match self.batch.next() {
                Some(Some(bytes)) => {
                    self.row += 1;
                    let content = utf8(&self.path, self.row, bytes.data().to_vec())?;
                    return Ok(Some(Record::new(&self.path, self.row, content)));
                }
                Some(None) => {
                    self.row += 1;
                    return Ok(Some(Record::without_text(&self.path, self.row)));
                }
                None if self.refill()? => {}
                None => return Ok(None),
            }
        }
    }
}

impl Iterator for Rows {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let record = self.record().transpose();
        self.failed = matches!(record, Some(Err(_)));
        record
    }
}
