//! The fields of a JSON object of a client. What is not known, or null, is as good as absent; what has another type or lies
//! outside of its range is refused with its name.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// An object, and where it stands in the body.
#[derive(Debug)]
pub(crate) struct Fields {
    object: Map<String, Value>,
    path: String,
}

impl Fields {
    /// The fields of a value that stands at `path`; the body itself stands at an empty path.
    pub(crate) fn of(value: Value, path: impl Into<String>) -> Result<Fields, ApiError> {
        let path = path.into();
        match value {
            Value::Object(object) => Ok(Fields { object, path }),
            other if path.is_empty() => {
                Err(ApiError::invalid(format!("The body is an object, not {}.", kind(&other))))
            }
            other => Err(wrong(&path, "an object", &other)),
        }
    }

    /// The full name of a field.
    pub(crate) fn param(&self, name: &str) -> String {
        match self.path.is_empty() {
            true => name.to_owned(),
            false => format!("{}.{name}", self.path),
        }
    }

    /// A field of any type; null is none.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.object.swap_remove(name).filter(|value| !value.is_null())
    }

    /// The first of these names that there is; the others are passed over.
    pub(crate) fn take_any(&mut self, names: &[&'static str]) -> Option<(&'static str, Value)> {
        let mut found = None;
        for name in names {
            let value = self.take(name);
            found = found.or(value.map(|value| (*name, value)));
        }
        found
    }

    /// Puts a value in a field.
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.object.insert(name.to_owned(), value);
    }

    /// Calls a field by another name, so that those that several APIs have are read in one place.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        self.object.swap_remove(to);
        if let Some(value) = self.take(from) {
            self.object.insert(to.to_owned(), value);
        }
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(&self.param(name), "a string", &other)),
        }
    }

    pub(crate) fn required_string(&mut self, name: &str) -> Result<String, ApiError> {
        self.string(name)?.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong(&self.param(name), "true or false", &other)),
        }
    }

    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        number(&value, &self.param(name), range).map(Some)
    }

    pub(crate) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        integer(&value, &self.param(name), range).map(Some)
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(wrong(&self.param(name), "a list", &other)),
        }
    }

    /// The fields of an object in a field.
    pub(crate) fn fields(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        self.take(name).map(|value| Fields::of(value, self.param(name))).transpose()
    }

    /// All that is left.
    pub(crate) fn into_object(self) -> Map<String, Value> {
        self.object
    }

    /// The error for a field that has to be there.
    pub(crate) fn missing(&self, name: &str) -> ApiError {
        let param = self.param(name);
        let message = format!("`{param}` is required.");
        ApiError::field(param, message)
    }
}

/// A number in a range.
pub(crate) fn number(value: &Value, param: &str, range: RangeInclusive<f64>) -> Result<f64, ApiError> {
    let number = value.as_f64().ok_or_else(|| wrong(param, "a number", value))?;
    match range.contains(&number) {
        true => Ok(number),
        false => Err(outside(param, range.start(), range.end())),
    }
}

/// A whole number in a range; 3.0 is one too.
pub(crate) fn integer(value: &Value, param: &str, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    // Whole numbers up to 2^53 are exact in f64.
    let of_float = |number: f64| (number.fract() == 0.0 && number.abs() <= 9e15).then_some(number as i64);
    let number = value.as_i64().or_else(|| value.as_f64().and_then(of_float));
    let number = number.ok_or_else(|| match value.is_number() {
        true => outside(param, range.start(), range.end()),
        false => wrong(param, "an integer", value),
    })?;
    match range.contains(&number) {
        true => Ok(number),
        false => Err(outside(param, range.start(), range.end())),
    }
}

/// The error for a value of another type.
pub(crate) fn wrong(param: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::field(param, format!("`{param}` is {expected}, not {}.", kind(found)))
}

fn outside(param: &str, least: impl std::fmt::Display, most: impl std::fmt::Display) -> ApiError {
    ApiError::field(param, format!("`{param}` lies between {least} and {most}."))
}

/// The error for a list that is longer than allowed.
pub(crate) fn too_many(param: &str, n: usize, most: usize) -> ApiError {
    ApiError::field(param, format!("`{param}` has {n} entries, and may have {most}."))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
