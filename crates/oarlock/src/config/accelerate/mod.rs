//! Accelerate's own settings: the flags of its launcher, the keys of its configuration file, the variables that it
//! hands on, all of one table; and what they say about a training in keys of ours.

pub mod file;
pub mod keys;
pub mod meaning;

#[cfg(test)]
mod tests;

pub use file::File;
pub use meaning::Engine;

use super::resolve::Setting;
use super::source::SourceKind;
use super::value::{self, Value};

/// A setting as Accelerate writes it into the environment: what was written, else the default; `None` for nothing.
pub fn exported(setting: &Setting) -> Option<String> {
    let default;
    let value = match &setting.value {
        // `key: null` leaves the default of the flag.
        Value::Null => {
            default = value::default(setting.key);
            &default
        }
        value => value,
    };
    match value {
        Value::Null => None,
        Value::Bool(flag) => Some(if *flag { "True" } else { "False" }.to_owned()),
        // What stands in a file as a whole number stays one.
        Value::Float(number) => Some(match setting.place() {
            Some(place) if place.source.kind == SourceKind::File && number.fract() == 0.0 => {
                Some(place.text())
                    .filter(|text| text.parse::<i64>().is_ok())
                    .map_or_else(|| format!("{number:?}"), str::to_owned)
            }
            _ => format!("{number:?}"),
        }),
        Value::List(names) => Some(names.join(",")),
        value => Some(value.to_string()),
    }
}
