//! JSON Lines and JSON arrays: the text column of each object, without building the others.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::super::error::Error;
use super::text::{Parts, lines, utf8};
use super::{Content, MAX_RECORD_BYTES, Record, Records, missing_column, until_error, wrong_type};

/// Streams a file of one object a line, or one array of objects; the first character tells which it is.
pub(super) fn open(path: &Path, columns: Vec<String>, content: Content) -> Result<Records, Error> {
    let file: Arc<Path> = path.into();
    let objects: Parts = match starts_with_bracket(path)? {
        true => Box::new(until_error(Elements::open(path)?)),
        false => lines(path)?,
    };
    Ok(Box::new(objects.map(move |object| {
        let (line, bytes) = object?;
        let mut record = Record { file: file.clone(), line, content: utf8(&file, line, bytes)? };
        if content == Content::Text {
            record.content = text_of(&record, &columns)?;
        }
        Ok(record)
    })))
}

fn starts_with_bracket(path: &Path) -> Result<bool, Error> {
    let file = oarlock_comm::open_file(path).map_err(|e| Error::read(path, e))?;
    for byte in BufReader::with_capacity(1 << 12, file).bytes() {
        match byte.map_err(|e| Error::read(path, e))? {
            b' ' | b'\t' | b'\r' | b'\n' | 0xef | 0xbb | 0xbf => {}
            byte => return Ok(byte == b'['),
        }
    }
    Ok(false)
}

/// The text in the first of `columns` that a record has.
fn text_of(record: &Record, columns: &[String]) -> Result<String, Error> {
    let Record { file, line, content } = record;
    let broken = |e: serde_json::Error| record.json_error(&e);
    let mut parser = serde_json::Deserializer::from_str(content);
    let found = Pick(columns).deserialize(&mut parser).and_then(|found| parser.end().map(|()| found));
    let not_an_object = |kind: &str| {
        let cause = format!("the record is {kind} where an object is expected");
        Err(record.error(cause, "write each record as {\"text\": \"...\"}"))
    };
    match found.map_err(broken)? {
        Found::Column(_, Ok(text)) => Ok(text),
        Found::Column(rank, Err(kind)) => Err(wrong_type(file, *line, &columns[rank], kind)),
        Found::Text(_) => not_an_object("a string"),
        Found::Other(kind) => not_an_object(kind),
        Found::NoColumn => {
            let object: Map<String, Value> = serde_json::from_str(content).map_err(broken)?;
            let names: Vec<String> = object.into_iter().map(|(name, _)| name).collect();
            Err(missing_column(file, *line, columns, &names))
        }
    }
}

/// What stands in a value.
enum Found {
    /// A string.
    Text(String),
    /// The text of the column at this place in the list, or what the column holds instead.
    Column(usize, Result<String, &'static str>),
    /// An object without any of the columns.
    NoColumn,
    /// Something else, or an object of which no column is wanted.
    Other(&'static str),
}

/// Picks the first of the listed columns that an object has; of a repeated key the last value counts. With no column
/// listed it takes strings.
struct Pick<'c>(&'c [String]);

impl<'de> DeserializeSeed<'de> for Pick<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pick<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let mut found = if self.0.is_empty() { Found::Other("an object") } else { Found::NoColumn };
        while let Some(key) = map.next_key::<CowStr>()? {
            let rank = self.0.iter().position(|column| *column == key.0);
            let wanted = rank.filter(|rank| !matches!(found, Found::Column(best, _) if *rank > best));
            let Some(rank) = wanted else {
                let IgnoredAny = map.next_value()?;
                continue;
            };
            found = match map.next_value_seed(Pick(&[]))? {
                Found::Text(text) => Found::Column(rank, Ok(text)),
                Found::Other(kind) => Found::Column(rank, Err(kind)),
                nothing => nothing,
            };
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Found, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::Other("an array"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Found, E> {
        Ok(Found::Text(text.to_owned()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Found, E> {
        Ok(Found::Other("a boolean"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_unit<E>(self) -> Result<Found, E> {
        Ok(Found::Other("null"))
    }
}

/// A key, borrowed when it has no escapes.
#[derive(serde::Deserialize)]
struct CowStr<'a>(#[serde(borrow)] Cow<'a, str>);

/// The elements of a JSON array as bytes, with the line that each begins on. Only finds where an element ends; what
/// is inside is the parser's business.
struct Elements {
    reader: BufReader<File>,
    path: PathBuf,
    line: u64,
    started: bool,
}

impl Elements {
    fn open(path: &Path) -> Result<Elements, Error> {
        let file = oarlock_comm::open_file(path).map_err(|e| Error::read(path, e))?;
        let reader = BufReader::with_capacity(1 << 18, file);
        Ok(Elements { reader, path: path.into(), line: 1, started: false })
    }

    fn byte(&mut self) -> Result<Option<u8>, Error> {
        let byte = self.reader.fill_buf().map_err(|e| Error::read(&self.path, e))?.first().copied();
        if let Some(byte) = byte {
            self.reader.consume(1);
            self.line += u64::from(byte == b'\n');
        }
        Ok(byte)
    }

    fn element(&mut self) -> Result<Option<(u64, Vec<u8>)>, Error> {
        let (mut bytes, mut depth, mut in_string, mut escaped) = (Vec::new(), 0u32, false, false);
        let mut first_line = self.line;
        loop {
            let Some(byte) = self.byte()? else {
                let cause = "the file ends inside the array";
                return Err(Error::record(&self.path, self.line, cause, "close the array with ]"));
            };
            if !self.started {
                self.started = byte == b'[';
                continue;
            }
            if in_string {
                in_string = escaped || byte != b'"';
                escaped = byte == b'\\' && !escaped;
            } else {
                match byte {
                    b'"' => in_string = true,
                    b'[' | b'{' => depth += 1,
                    b']' if depth == 0 => {
                        self.end()?;
                        // An empty last element is that of an empty array; one after a comma is as good as none.
                        return Ok((!bytes.is_empty()).then_some((first_line, bytes)));
                    }
                    b']' | b'}' => depth = depth.saturating_sub(1),
                    b',' if depth == 0 => return Ok(Some((first_line, bytes))),
                    _ => {}
                }
            }
            if bytes.is_empty() {
                if byte.is_ascii_whitespace() {
                    continue;
                }
                first_line = self.line;
            }
            bytes.push(byte);
            if bytes.len() as u64 > MAX_RECORD_BYTES {
                let cause = format!("a record of more than {} MiB", MAX_RECORD_BYTES >> 20);
                return Err(Error::record(
                    &self.path,
                    first_line,
                    cause,
                    "look for a missing quote or bracket",
                ));
            }
        }
    }

    /// Nothing but white space may follow the array.
    fn end(&mut self) -> Result<(), Error> {
        while let Some(byte) = self.byte()? {
            if !byte.is_ascii_whitespace() {
                let cause = "something follows the array";
                return Err(Error::record(
                    &self.path,
                    self.line,
                    cause,
                    "remove it, or write one object a line",
                ));
            }
        }
        self.started = false;
        Ok(())
    }
}

impl Iterator for Elements {
    type Item = Result<(u64, Vec<u8>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        // After the end of the array the reader is at the end of the file.
        match self.reader.fill_buf() {
            Ok([]) if !self.started => None,
            _ => self.element().transpose(),
        }
    }
}
