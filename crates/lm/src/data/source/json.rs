//! JSON Lines, JSON arrays, and objects over several lines one after another: the text column of each object, without
//! building the others.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oarlock_config::json::Twice;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::super::error::Error;
use super::super::record::{Content, Record, Records, or_unwrap};
use super::problems::{MAX_RECORD_BYTES, NAME_COLUMN, no_column, until_error, wrong_type};
use super::text::{Parts, lines, utf8};

/// Streams a file of one object a line, of objects over several lines, or of one array of objects; its beginning tells which
/// it is.
pub(super) fn open(path: &Path, columns: Vec<String>, content: Content) -> Result<Records, Error> {
    let file: Arc<Path> = path.into();
    let objects: Parts = match Layout::of(path)? {
        Layout::Lines => lines(path)?,
        Layout::Array => Box::new(until_error(Elements::open(path, true)?)),
        Layout::Objects => Box::new(until_error(Elements::open(path, false)?)),
    };
    Ok(Box::new(objects.map(move |object| {
        let (line, bytes) = object?;
        let mut record = Record::new(&file, line, utf8(&file, line, bytes)?);
        let twice = Twice::first(&record.content).map(|twice| twice.key);
        if content == Content::Text {
            match text_of(&record, &columns)? {
                Some(text) => record.content = text,
                None => record = Record::without_text(&file, line),
            }
        }
        Ok(Record { twice, ..record })
    })))
}

/// How the objects of a file stand in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Each on a line.
    Lines,
    /// In one array.
    Array,
    /// One after another, the first of them over several lines.
    Objects,
}

impl Layout {
    fn of(path: &Path) -> Result<Layout, Error> {
        let file = oarlock_comm::open_file(path).map_err(|e| Error::read(path, e))?;
        let (mut nesting, mut has_begun) = (Nesting::default(), false);
        for byte in BufReader::with_capacity(1 << 16, file).bytes() {
            let byte = byte.map_err(|e| Error::read(path, e))?;
            match byte {
                _ if !has_begun && is_blank(byte) => continue,
                b'[' if !has_begun => return Ok(Layout::Array),
                b'\n' if nesting.depth > 0 && !nesting.in_string => return Ok(Layout::Objects),
                b'\n' => return Ok(Layout::Lines),
                _ => {}
            }
            has_begun = true;
            nesting.follow(byte);
        }
        Ok(Layout::Lines)
    }
}

/// White space, and the bytes of a byte order mark.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0xef | 0xbb | 0xbf)
}

/// Where in a value of JSON a byte stands.
#[derive(Default)]
struct Nesting {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Nesting {
    fn follow(&mut self, byte: u8) {
        if self.in_string {
            self.in_string = self.escaped || byte != b'"';
            self.escaped = byte == b'\\' && !self.escaped;
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'[' | b'{' => self.depth += 1,
            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// Whether what the bytes so far began is not complete.
    fn is_inside(&self) -> bool {
        self.depth > 0 || self.in_string
    }
}

/// The text in the first of `columns` that a record has; `None` where that is null.
fn text_of(record: &Record, columns: &[String]) -> Result<Option<String>, Error> {
    let Record { file, line, content, .. } = record;
    let broken = |e: serde_json::Error| record.json_error(&e);
    let mut parser = serde_json::Deserializer::from_str(content);
    let found = Pick(columns).deserialize(&mut parser).and_then(|found| parser.end().map(|()| found));
    let not_an_object = |kind: &str| {
        let cause = format!("the record is {kind} where an object is expected");
        Err(record.error(cause, "write each record as {\"text\": \"...\"}"))
    };
    match found.map_err(broken)? {
        Found::Column(_, Ok(text)) => Ok(Some(text)),
        Found::Column(_, Err(NULL)) => Ok(None),
        Found::Column(rank, Err(kind)) => Err(wrong_type(file, *line, &columns[rank], kind)),
        Found::Text(_) => not_an_object("a string"),
        Found::Other(kind) => not_an_object(kind),
        Found::NoColumn => {
            let object: Map<String, Value> = serde_json::from_str(content).map_err(broken)?;
            let names: Vec<String> = object.keys().cloned().collect();
            Err(record.error(no_column(columns, &names), &or_unwrap(NAME_COLUMN, &object)))
        }
    }
}

/// What a column holds that has no text.
const NULL: &str = "null";

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
        Ok(Found::Other(NULL))
    }
}

/// A key, borrowed when it has no escapes.
#[derive(serde::Deserialize)]
struct CowStr<'a>(#[serde(borrow)] Cow<'a, str>);

/// The elements of a JSON array as bytes, with the line that each begins on, or the objects that follow each other in a file.
/// Only finds where one ends; what is inside is the parser's business.
struct Elements {
    reader: BufReader<File>,
    path: PathBuf,
    line: u64,
    in_array: bool,
    started: bool,
}

impl Elements {
    fn open(path: &Path, in_array: bool) -> Result<Elements, Error> {
        let file = oarlock_comm::open_file(path).map_err(|e| Error::read(path, e))?;
        let reader = BufReader::with_capacity(1 << 18, file);
        Ok(Elements { reader, path: path.into(), line: 1, in_array, started: false })
    }

    fn byte(&mut self) -> Result<Option<u8>, Error> {
        let byte = self.reader.fill_buf().map_err(|e| Error::read(&self.path, e))?.first().copied();
        if let Some(byte) = byte {
            self.reader.consume(1);
            self.line += u64::from(byte == b'\n');
        }
        Ok(byte)
    }

    fn next_element(&mut self) -> Result<Option<(u64, Vec<u8>)>, Error> {
        if self.in_array { self.element() } else { self.object() }
    }

    /// The next of objects that follow each other.
    fn object(&mut self) -> Result<Option<(u64, Vec<u8>)>, Error> {
        let (mut bytes, mut nesting) = (Vec::new(), Nesting::default());
        let mut first_line = self.line;
        while let Some(byte) = self.byte()? {
            if bytes.is_empty() {
                if is_blank(byte) {
                    continue;
                }
                first_line = self.line;
                if byte != b'{' {
                    let cause = "something else than an object follows the object before";
                    let remedy = "remove it; objects that commas separate stand between [ and ]";
                    return Err(Error::record(&self.path, first_line, cause, remedy));
                }
            }
            nesting.follow(byte);
            self.push(&mut bytes, byte, first_line)?;
            if !nesting.is_inside() {
                return Ok(Some((first_line, bytes)));
            }
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        let cause = "an object begins in this line, and the file ends inside it";
        Err(Error::record(&self.path, first_line, cause, "look for a missing quote or bracket"))
    }

    fn element(&mut self) -> Result<Option<(u64, Vec<u8>)>, Error> {
        let (mut bytes, mut nesting) = (Vec::new(), Nesting::default());
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
            match byte {
                b']' if !nesting.is_inside() => {
                    self.end()?;
                    // An empty last element is that of an empty array; one after a comma is as good as none.
                    return Ok((!bytes.is_empty()).then_some((first_line, bytes)));
                }
                b',' if !nesting.is_inside() => return Ok(Some((first_line, bytes))),
                _ => nesting.follow(byte),
            }
            if bytes.is_empty() {
                if byte.is_ascii_whitespace() {
                    continue;
                }
                first_line = self.line;
            }
            self.push(&mut bytes, byte, first_line)?;
        }
    }

    fn push(&self, bytes: &mut Vec<u8>, byte: u8, first_line: u64) -> Result<(), Error> {
        bytes.push(byte);
        if bytes.len() as u64 <= MAX_RECORD_BYTES {
            return Ok(());
        }
        let cause = format!("a record of more than {} MiB", MAX_RECORD_BYTES >> 20);
        Err(Error::record(&self.path, first_line, cause, "look for a missing quote or bracket"))
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
            _ => self.next_element().transpose(),
        }
    }
}
