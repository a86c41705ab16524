//! Reads a written value as the type of its key. What people write by habit is understood: `5e-4` and `"5e-4"`
//! are numbers, `yes`, `True` and `1` are true, `8.0` is a whole number, `a, b` is a list.

use std::fmt;

use super::json::parse_inside;
use super::keys::{Row, ValueType};
use super::node::{Data, Entry, Node};
use super::secret::{HIDDEN, Secret, is_secret_name};
use super::word::whole;

pub use super::word::{boolean, float, number, quoted};

/// What is written where a value is to follow from others.
pub const AUTO: &str = "auto";

/// A value of a known type. Paths and choices are [`Value::Text`]; counts and shares of steps are
/// [`Value::Float`].
#[derive(Clone, Debug)]
pub enum Value {
    /// Nothing.
    Null,
    /// true or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Words.
    Text(String),
    /// Words that no output shows.
    Secret(Secret),
    /// Names.
    List(Vec<String>),
    /// Settings inside a setting, still as written.
    Map(Vec<Entry>),
}

impl Value {
    /// Whether two values mean the same.
    pub fn agrees(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Float(a), Value::Float(b)) => a == b,
            (Value::Text(a), Value::Text(b)) => a == b,
            (Value::Secret(a), Value::Secret(b)) => a == b,
            (Value::List(a), Value::List(b)) => a == b,
            (Value::Map(_), Value::Map(_)) => self.to_string() == other.to_string(),
            _ => false,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("-"),
            Value::Bool(x) => write!(f, "{x}"),
            Value::Int(x) => write!(f, "{x}"),
            Value::Float(x) => f.write_str(&number(*x)),
            Value::Text(x) => f.write_str(x),
            Value::Secret(x) => write!(f, "{x}"),
            Value::List(x) => f.write_str(&x.join(", ")),
            Value::Map(entries) => {
                f.write_str("{")?;
                for (i, Entry { key, value, .. }) in entries.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    match &value.data {
                        _ if is_secret_name(key) => write!(f, "{comma}{key}: {HIDDEN}")?,
                        Data::Scalar { text, .. } => write!(f, "{comma}{key}: {text}")?,
                        _ => write!(f, "{comma}{key}: …")?,
                    }
                }
                f.write_str("}")
            }
        }
    }
}

/// The value of a node as a type; `None` if the node is not of the type.
pub fn read(value_type: ValueType, node: &Node) -> Option<Value> {
    if node.is_null() {
        return Some(Value::Null);
    }
    match (value_type, &node.data) {
        (ValueType::List, Data::List(items)) => {
            let names = items.iter().map(|item| item.word().map(str::to_owned));
            names.collect::<Option<Vec<_>>>().map(list)
        }
        (ValueType::Map | ValueType::MapOrPath, Data::Map(entries)) => Some(Value::Map(entries.clone())),
        (ValueType::Map | ValueType::MapOrPath, Data::Scalar { text, .. })
            if text.trim_start().starts_with('{') =>
        {
            match parse_inside(text, &node.location).ok()?.data {
                Data::Map(entries) => Some(Value::Map(entries)),
                _ => None,
            }
        }
        (_, Data::Scalar { text, .. }) => word(value_type, text.trim()),
        _ => None,
    }
}

/// The default of a key.
pub fn default(key: &Row) -> Value {
    if key.default.is_empty() {
        Value::Null
    } else {
        word(key.value_type, key.default).unwrap_or(Value::Null)
    }
}

fn word(value_type: ValueType, text: &str) -> Option<Value> {
    match value_type {
        ValueType::Bool => boolean(text).map(Value::Bool),
        ValueType::Int(min) => whole(text).filter(|x| *x >= min).map(Value::Int),
        ValueType::Float(range) => float(text).filter(|x| range.contains(*x)).map(Value::Float),
        ValueType::Steps => {
            let steps = float(text)?;
            let fits = (0.0..1.0).contains(&steps) || (steps >= 1.0 && steps.fract() == 0.0 && steps < 9e15);
            fits.then_some(Value::Float(steps))
        }
        // Empty words are what YAML writers leave behind when they mean nothing.
        ValueType::Text | ValueType::Path | ValueType::MapOrPath if text.is_empty() => Some(Value::Null),
        ValueType::Text | ValueType::Path | ValueType::MapOrPath => Some(Value::Text(text.to_owned())),
        ValueType::Secret if text.is_empty() => Some(Value::Null),
        ValueType::Secret => Some(Value::Secret(Secret::new(text))),
        ValueType::BoolOrPath => Some(match boolean(text) {
            Some(flag) => Value::Bool(flag),
            None if text.is_empty() => Value::Null,
            None => Value::Text(text.to_owned()),
        }),
        ValueType::Choice(names) => {
            let found = names.iter().find(|name| name.eq_ignore_ascii_case(text));
            found.map(|name| Value::Text((*name).to_owned()))
        }
        ValueType::List => Some(list(text.split(',').map(|name| name.trim().to_owned()).collect())),
        ValueType::Map => None,
    }
}

fn list(mut names: Vec<String>) -> Value {
    names.retain(|name| !name.is_empty());
    if names.is_empty() { Value::Null } else { Value::List(names) }
}
