//! Typed reading of a JSON object, in which an error names the file, the line, the field, what came and what is expected;
//! and writing into one that keeps what is there.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use oarlock_engine::{Error, Result};
use serde_json::{Map, Value, json};

/// A JSON object of a file.
#[derive(Clone, Copy)]
pub(in crate::model) struct Fields<'a> {
    path: &'a Path,
    text: &'a str,
    map: &'a Map<String, Value>,
    asked: &'a RequestedFields,
}

/// The fields that somebody has asked for. A field of an object inside the file is known by its own name.
#[derive(Default)]
pub(in crate::model) struct RequestedFields(RefCell<BTreeSet<String>>);

impl<'a> Fields<'a> {
    pub(in crate::model) fn new(
        path: &'a Path,
        text: &'a str,
        map: &'a Map<String, Value>,
        asked: &'a RequestedFields,
    ) -> Fields<'a> {
        Fields { path, text, map, asked }
    }

    /// The fields that hold something and that nobody has asked for.
    pub(super) fn not_asked_for(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        let asked = self.asked.0.borrow().clone();
        self.map.iter().filter(move |(name, value)| !value.is_null() && !asked.contains(*name))
    }

    fn asks(&self, name: &str) {
        if !self.asked.0.borrow().contains(name) {
            self.asked.0.borrow_mut().insert(name.to_owned());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Whether this object says all that another one does, with the same values.
    pub(super) fn says_as_much_as(&self, other: &Fields<'_>) -> bool {
        let same = |a: &Value, b: &Value| a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a));
        // Older files say `type` for `rope_type`.
        let own =
            |name: &str| self.map.get(name).or_else(|| self.map.get("rope_type").filter(|_| name == "type"));
        other.map.iter().all(|(name, value)| own(name).is_some_and(|own| same(own, value)))
    }

    /// Whether the field is written at all, be it null.
    pub(in crate::model) fn has(&self, name: &str) -> bool {
        self.asks(name);
        self.map.contains_key(name)
    }

    /// The field, unless it is missing or null.
    pub(in crate::model) fn value(&self, name: &str) -> Option<&'a Value> {
        self.asks(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(in crate::model) fn count(&self, name: &str) -> Result<Option<usize>> {
        self.typed(name, "a whole number from 0 on", as_count)
    }

    pub(in crate::model) fn count_or(&self, name: &str, default: usize) -> Result<usize> {
        Ok(self.count(name)?.unwrap_or(default))
    }

    pub(in crate::model) fn number(&self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "a number", Value::as_f64)
    }

    pub(in crate::model) fn number_or(&self, name: &str, default: f64) -> Result<f64> {
        Ok(self.number(name)?.unwrap_or(default))
    }

    /// The field where it is written, be it null; else the default.
    pub(in crate::model) fn written_or<T>(
        &self,
        name: &str,
        default: Option<T>,
        read: impl Fn(&Self, &str) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if self.has(name) { read(self, name) } else { Ok(default) }
    }

    pub(in crate::model) fn flag_or(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    pub(in crate::model) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(in crate::model) fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        let map = self.typed(name, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { map, ..*self }))
    }

    pub(in crate::model) fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>> {
        let numbers = |value: &Value| value.as_array()?.iter().map(Value::as_f64).collect();
        self.typed(name, "a list of numbers", numbers)
    }

    pub(in crate::model) fn counts(&self, name: &str) -> Result<Option<Vec<usize>>> {
        let counts = |value: &Value| value.as_array()?.iter().map(as_count).collect();
        self.typed(name, "a list of whole numbers from 0 on", counts)
    }

    /// A token id, or a list of them.
    pub(in crate::model) fn token_ids(&self, name: &str) -> Result<Option<Vec<u32>>> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        self.typed(name, "a token id or a list of them", |value| match value.as_array() {
            Some(ids) => ids.iter().map(id).collect(),
            None => id(value).map(|id| vec![id]),
        })
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(name, format!("expected {expected}")))
    }

    /// An error about a field: its line, its value, and `remedy`.
    pub(in crate::model) fn wrong(&self, name: &str, remedy: impl AsRef<str>) -> Error {
        let line = self.line_of(name).map_or(String::new(), |line| format!("line {line}: "));
        let value = match self.map.get(name) {
            None => "is missing".to_string(),
            Some(Value::Object(_)) => "is an object".to_string(),
            Some(value) => format!("is {value}"),
        };
        Error::bad_file(self.path, format!("{line}\"{name}\" {value}; {}", remedy.as_ref()))
    }

    /// The line that holds the field's name, counted from 1.
    fn line_of(&self, name: &str) -> Option<usize> {
        let quoted = format!("\"{name}\"");
        let key = |line: &str| {
            line.match_indices(&quoted).any(|(at, _)| line[at + quoted.len()..].trim_start().starts_with(':'))
        };
        self.text.lines().position(key).map(|index| index + 1)
    }
}

/// A whole number; some writers give 4096.0.
fn as_count(value: &Value) -> Option<usize> {
    let float = || value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..9e15).contains(x)).map(|x| x as u64);
    value.as_u64().or_else(float).and_then(|n| usize::try_from(n).ok())
}

/// The fields of a `config.json` that is being written; those that nobody sets stay as they were read.
pub(in crate::model) struct FieldWriter {
    pub(super) fields: Map<String, Value>,
}

impl FieldWriter {
    pub(super) fn new(fields: Map<String, Value>) -> FieldWriter {
        FieldWriter { fields }
    }

    /// Sets a field. One that says the same already stays as it is written, be it 1 or 1.0.
    pub(in crate::model) fn set(&mut self, name: &str, value: Value) {
        let same = |old: &Value| *old == value || old.as_f64().is_some_and(|old| Some(old) == value.as_f64());
        if !self.fields.get(name).is_some_and(same) {
            self.fields.insert(name.to_owned(), value);
        }
    }

    /// Sets a field that is not written yet.
    pub(in crate::model) fn set_where_absent(&mut self, name: &str, value: Value) {
        self.fields.entry(name).or_insert(value);
    }

    /// Removes an object and returns what was in it.
    pub(in crate::model) fn take_object(&mut self, name: &str) -> Map<String, Value> {
        match self.fields.remove(name) {
            Some(Value::Object(object)) => object,
            _ => Map::new(),
        }
    }

    pub(in crate::model) fn remove(&mut self, name: &str) {
        self.fields.remove(name);
    }

    pub(super) fn finish(self) -> Map<String, Value> {
        self.fields
    }
}

/// An f32 with the digits that a person would write.
pub(in crate::model) fn decimal(x: f32) -> Value {
    json!(x.to_string().parse::<f64>().unwrap_or(f64::from(x)))
}
