//! JSON Lines and JSON arrays: the text column of each object, without building the others.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::super::error::{Error, Result};
use super::text::{lines, utf8};
use super::{Content, MAX_RECORD_BYTES, Record, Records, missing_column, until_error, wrong_type};

/// Streams a file of one object a line, or one array of objects; the first character tells which it is.
pub(super) fn open(path: &Path, columns: Vec<String>, content: Content) -> Result<Records> {
    let file: Arc<Path> = path.into();
    let objects: Box<dyn Iterator<Item = Result<(u64, Vec<u8>)>> + Send> = match starts_with_bracket(path)? {
        true => Box::new(until_error(Elements::open(path)?)),
        false => Box::new(lines(path)?),
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

fn starts_with_bracket(path: &Path) -> Result<bool> {
    let file = File::open(path).map_err(|e| Error::read(path, e))?;
    for byte in BufReader::with_capacity(1 << 12, file).bytes() {
        match byte.map_err(|e| Error::read(path, e))? {
            b' ' | b'\t' | b'\r' | b'\n' | 0xef | 0xbb | 0xbf => {}
            byte => return Ok(byte == b'['),
        }
    }
    Ok(false)
}

/// The text in the first of `columns` that a record has.
fn text_of(record: &Record, columns: &[String]) -> Result<String> {
    let Record { file, line, content } = record;
    let broken = |e: serde_json::Error| record.json_error(&e);
    let mut parser = serde_json::Deserializer::from_str(content);
    let found = FirstOf(columns).deserialize(&mut parser).and_then(|found| parser.end().map(|()| found));
    match found.map_err(broken)? {
        Found::Text(_, Field::Text(text)) => Ok(text),
        Found::Text(rank, Field::Other(kind)) => Err(wrong_type(file, *line, &columns[rank], kind)),
        Found::NoObject(kind) => {
            let cause = format!("the record is {kind} where an object is expected");
            Err(record.error(cause, "write each record as {\"text\": \"...\"}"))
        }
        Found::Nothing => {
            let object: Map<String, Value> = serde_json::from_str(content).map_err(broken)?;
            let names: Vec<String> = object.into_iter().map(|(name, _)| name).collect();
            Err(missing_column(file, *line, columns, &names))
        }
    }
}

/// What a record holds of the wanted columns.
enum Found {
    Nothing,
    NoObject(&'static str),
    /// The field of the column at this place in the list.
    Text(usize, Field),
}

enum Field {
    Text(String),
    Other(&'static str),
}

/// Picks the first of the listed columns that a record has; of a repeated key the last value counts.
struct FirstOf<'c>(&'c [String]);

impl<'de> DeserializeSeed<'de> for FirstOf<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Found, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FirstOf<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Found, A::Error> {
        let mut found = Found::Nothing;
        while let Some(key) = map.next_key::<CowStr>()? {
            let rank = self.0.iter().position(|c| *c == key.0);
            match (rank, &found) {
                (Some(rank), Found::Text(best, _)) if rank > *best => {
                    map.next_value::<IgnoredAny>()?;
                }
                (Some(rank), _) => found = Found::Text(rank, map.next_value_seed(FieldSeed)?),
                (None, _) => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Found, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::NoObject("an array"))
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<Found, E> {
        Ok(Found::NoObject("a string"))
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<Found, E> {
        Ok(Found::NoObject("a boolean"))
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<Found, E> {
        Ok(Found::NoObject("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<Found, E> {
        Ok(Found::NoObject("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<Found, E> {
        Ok(Found::NoObject("a number"))
    }

    fn visit_unit<E>(self) -> std::result::Result<Found, E> {
        Ok(Found::NoObject("null"))
    }
}

/// A key, borrowed when it has no escapes.
#[derive(serde::Deserialize)]
struct CowStr<'a>(#[serde(borrow)] Cow<'a, str>);

struct FieldSeed;

impl<'de> DeserializeSeed<'de> for FieldSeed {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Field, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldSeed {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Field, E> {
        Ok(Field::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> std::result::Result<Field, E> {
        Ok(Field::Text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Field, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Field::Other("an object"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Field, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Field::Other("an array"))
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<Field, E> {
        Ok(Field::Other("a boolean"))
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<Field, E> {
        Ok(Field::Other("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<Field, E> {
        Ok(Field::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<Field, E> {
        Ok(Field::Other("a number"))
    }

    fn visit_unit<E>(self) -> std::result::Result<Field, E> {
        Ok(Field::Other("null"))
    }
}

/// The elements of a JSON array as bytes, with the line that each begins on. Only finds where an element ends; what
/// is inside is the parser's business.
struct Elements {
    reader: BufReader<File>,
    path: PathBuf,
    line: u64,
    started: bool,
}

impl Elements {
    fn open(path: &Path) -> Result<Elements> {
        let file = File::open(path).map_err(|e| Error::read(path, e))?;
        let reader = BufReader::with_capacity(1 << 18, file);
        Ok(Elements { reader, path: path.into(), line: 1, started: false })
    }

    fn byte(&mut self) -> Result<Option<u8>> {
        let byte = self.reader.fill_buf().map_err(|e| Error::read(&self.path, e))?.first().copied();
        if let Some(byte) = byte {
            self.reader.consume(1);
            self.line += u64::from(byte == b'\n');
        }
        Ok(byte)
    }

    fn element(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
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
    fn end(&mut self) -> Result<()> {
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
    type Item = Result<(u64, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        // After the end of the array the reader is at the end of the file.
        match self.reader.fill_buf() {
            Ok([]) if !self.started => None,
            _ => self.element().transpose(),
        }
    }
}
