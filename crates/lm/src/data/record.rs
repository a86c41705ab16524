//! One record of a data set as it was read, with its place for errors.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::error::{Error, Result};

/// A stream of the records of a data set.
pub type Records = Box<dyn Iterator<Item = Result<Record>> + Send>;

/// One record of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The file that holds it.
    pub file: Arc<Path>,
    /// Its first line, counted from 1 (in a Parquet file its row).
    pub line: u64,
    /// What was read of it.
    pub content: String,
    /// Whether its text is null.
    pub(super) lacks_text: bool,
    /// A key that stands twice in it with two values, of which the last counts, as in Python.
    pub(super) twice: Option<String>,
}

/// What is read of each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The text in the text column.
    Text,
    /// The whole record as a JSON object.
    Object,
}

impl Record {
    pub(super) fn new(file: &Arc<Path>, line: u64, content: String) -> Record {
        Record { file: file.clone(), line, content, lacks_text: false, twice: None }
    }

    /// A record whose text is null.
    pub(super) fn without_text(file: &Arc<Path>, line: u64) -> Record {
        Record { lacks_text: true, ..Record::new(file, line, String::new()) }
    }

    /// Whether its text is null, so that there is nothing to learn in it.
    pub(super) fn lacks_text(&self) -> bool {
        self.lacks_text
    }

    /// What of it is not read.
    pub(super) fn unread(&self) -> Option<String> {
        Some(format!("the first value of \"{}\", which stands twice in a record,", self.twice.as_ref()?))
    }

    /// The error of a record that cannot be used.
    pub(super) fn error(&self, cause: impl Into<String>, remedy: &str) -> Error {
        Error::record(&self.file, self.line, cause, remedy)
    }

    /// The error of a record that is not JSON, or not the JSON that was expected.
    pub(super) fn json_error(&self, error: &serde_json::Error) -> Error {
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or(&what);
        let mut remedy = "repair or remove the record";
        let cause = match error.classify() {
            serde_json::error::Category::Data => what.to_owned(),
            _ => {
                let line = self.content.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
                let rest = line.get(error.column().saturating_sub(1)..).unwrap_or_default();
                let python = ["NaN", "Infinity"].into_iter().find(|word| rest.starts_with(word));
                let what = match python {
                    Some(word) => format!("{word} is not a value of JSON, write null"),
                    None if what == "trailing characters" && rest.starts_with('{') => {
                        remedy = "write each object on a line of its own";
                        "another object follows in the same line".to_owned()
                    }
                    None => what.to_owned(),
                };
                if error.is_eof() {
                    remedy = "repair or remove the record; where the first object of a file stands on one line, all do";
                }
                format!("broken JSON at column {}: {what}", error.column())
            }
        };
        let line = self.line + error.line().saturating_sub(1) as u64;
        Error::record(&self.file, line, cause, remedy)
    }
}

/// The remedy for an object that does not have the columns of a record. One around the records has them in a field.
pub(super) fn or_unwrap(remedy: &str, object: &Map<String, Value>) -> String {
    let holds_records = |value: &Value| {
        value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_object))
    };
    match object.iter().find(|(_, value)| holds_records(value)) {
        Some((name, _)) => {
            format!("{remedy}; or, where \"{name}\" is the list of the records, write that list alone")
        }
        None => remedy.to_owned(),
    }
}
