//! Reads a written value as the type of its key. What people write by habit is understood: `5e-4` and `"5e-4"`
//! are numbers, `yes`, `True` and `1` are true, `8.0` is a whole number, `a, b` is a list.

use std::fmt;

use super::json::parse_inside;
use super::keys::{Key, Kind};
use super::node::{Data, Node};
use super::source::Place;

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
    /// Names.
    List(Vec<String>),
    /// Settings inside a setting, still as written.
    Map(Vec<Field>),
}

/// A setting inside a setting.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Where the name stands.
    pub place: Place,
    /// Its value.
    pub value: Node,
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
            Value::List(x) => f.write_str(&x.join(", ")),
            Value::Map(fields) => {
                f.write_str("{")?;
                for (i, Field { name, value, .. }) in fields.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    match &value.data {
                        Data::Scalar { text, .. } => write!(f, "{comma}{name}: {text}")?,
                        _ => write!(f, "{comma}{name}: …")?,
                    }
                }
                f.write_str("}")
            }
        }
    }
}

/// A number as people write it: `0.0005`, `5e-5`, `3`.
pub fn number(x: f64) -> String {
    if x != 0.0 && (x.abs() < 1e-3 || x.abs() >= 1e7) { format!("{x:e}") } else { format!("{x}") }
}

/// The value of a node as a type; `None` if the node is not of the type.
pub fn read(kind: Kind, node: &Node) -> Option<Value> {
    if node.is_null() {
        return Some(Value::Null);
    }
    match (kind, &node.data) {
        (Kind::List, Data::List(items)) => {
            let names = items.iter().map(|item| scalar(item).map(str::to_owned));
            names.collect::<Option<Vec<_>>>().map(list)
        }
        (Kind::Map | Kind::MapOrPath, Data::Map(pairs)) => {
            let field = |(key, value): &(Node, Node)| {
                Some(Field { name: scalar(key)?.to_owned(), place: key.place.clone(), value: value.clone() })
            };
            pairs.iter().map(field).collect::<Option<Vec<_>>>().map(Value::Map)
        }
        (Kind::Map | Kind::MapOrPath, Data::Scalar { text, .. }) if text.trim_start().starts_with('{') => {
            let inner = parse_inside(text, &node.place).ok()?;
            matches!(inner.data, Data::Map(_)).then(|| read(Kind::Map, &inner)).flatten()
        }
        (_, Data::Scalar { text, .. }) => word(kind, text.trim()),
        _ => None,
    }
}

/// The default of a key.
pub fn default(key: &Key) -> Value {
    if key.default.is_empty() { Value::Null } else { word(key.kind, key.default).unwrap_or(Value::Null) }
}

fn scalar(node: &Node) -> Option<&str> {
    match &node.data {
        Data::Scalar { text, .. } => Some(text.trim()),
        _ => None,
    }
}

fn word(kind: Kind, text: &str) -> Option<Value> {
    match kind {
        Kind::Bool => boolean(text).map(Value::Bool),
        Kind::Int(min) => whole(text).filter(|x| *x >= min).map(Value::Int),
        Kind::Float(range) => float(text).filter(|x| range.contains(*x)).map(Value::Float),
        Kind::Steps => {
            let steps = float(text)?;
            let fits = (0.0..1.0).contains(&steps) || (steps >= 1.0 && steps.fract() == 0.0 && steps < 9e15);
            fits.then_some(Value::Float(steps))
        }
        // Empty words are what YAML writers leave behind when they mean nothing.
        Kind::Text | Kind::Path | Kind::MapOrPath if text.is_empty() => Some(Value::Null),
        Kind::Text | Kind::Path | Kind::MapOrPath => Some(Value::Text(text.to_owned())),
        Kind::BoolOrPath => Some(match boolean(text) {
            Some(flag) => Value::Bool(flag),
            None if text.is_empty() => Value::Null,
            None => Value::Text(text.to_owned()),
        }),
        Kind::Choice(names) => names.contains(&text).then(|| Value::Text(text.to_owned())),
        Kind::List => Some(list(text.split(',').map(|name| name.trim().to_owned()).collect())),
        Kind::Map => None,
    }
}

fn list(mut names: Vec<String>) -> Value {
    names.retain(|name| !name.is_empty());
    if names.is_empty() { Value::Null } else { Value::List(names) }
}

/// The booleans of YAML 1.1 and of Hugging Face's argument parser.
pub fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" | "t" | "1" => Some(true),
        "false" | "no" | "off" | "n" | "f" | "0" => Some(false),
        _ => None,
    }
}

/// A finite number; YAML allows `_` between digits.
pub fn float(text: &str) -> Option<f64> {
    let text = text.replace('_', "");
    if !text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E')) {
        return None;
    }
    text.parse().ok().filter(|x: &f64| x.is_finite())
}

fn whole(text: &str) -> Option<i64> {
    // Above 2^53 a float is no longer exact, so whole numbers are tried first.
    text.replace('_', "")
        .parse()
        .ok()
        .or_else(|| float(text).filter(|x| x.fract() == 0.0 && x.abs() < 9e15).map(|x| x as i64))
}

#[cfg(test)]
mod tests {
    use super::super::table::TRAINING;
    use super::*;

    #[test]
    fn every_default_is_of_its_type() {
        for key in TRAINING.iter().filter(|key| !key.default.is_empty()) {
            assert!(word(key.kind, key.default).is_some(), "{}: {}", key.name, key.default);
        }
    }
}
