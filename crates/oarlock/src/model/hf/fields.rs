//! Typed reading of a JSON object; an error names the file, the line, the field, what came and what is expected.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A JSON object of a file.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    path: &'a Path,
    text: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str, map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { path, text, map }
    }

    /// Whether the field is written at all, be it null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// The field, unless it is missing or null.
    pub(super) fn value(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn count(&self, name: &str) -> Result<Option<usize>> {
        self.typed(name, "a whole number from 0 on", as_count)
    }

    pub(super) fn count_or(&self, name: &str, default: usize) -> Result<usize> {
        Ok(self.count(name)?.unwrap_or(default))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "a number", Value::as_f64)
    }

    pub(super) fn number_or(&self, name: &str, default: f64) -> Result<f64> {
        Ok(self.number(name)?.unwrap_or(default))
    }

    pub(super) fn flag_or(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        let map = self.typed(name, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { map, ..*self }))
    }

    /// A token id, or a list of them.
    pub(super) fn token_ids(&self, name: &str) -> Result<Option<Vec<u32>>> {
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
    pub(super) fn wrong(&self, name: &str, remedy: impl AsRef<str>) -> Error {
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
