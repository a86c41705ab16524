//! Which columns of a row hold what, and how their values are read.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::super::error::Error;
use super::super::example::Message;
use super::super::record::Record;

/// A row as JSON.
pub(super) type Row = Map<String, Value>;

/// What the rows of a data set look like.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::data) struct Format {
    pub(super) kind: Kind,
    /// Whether rows hold a chosen and a rejected answer.
    pub(super) ranking: bool,
    pub(super) columns: Columns,
    pub(super) tags: Tags,
}

/// `formatting`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::data) enum Kind {
    Alpaca,
    ShareGpt,
    OpenAi,
}

/// `columns`: which column holds what.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Columns {
    pub(super) prompt: Option<String>,
    pub(super) query: Option<String>,
    pub(super) response: Option<String>,
    pub(super) history: Option<String>,
    pub(super) messages: Option<String>,
    pub(super) system: Option<String>,
    pub(super) tools: Option<String>,
    pub(super) images: Option<String>,
    pub(super) videos: Option<String>,
    pub(super) audios: Option<String>,
    pub(super) chosen: Option<String>,
    pub(super) rejected: Option<String>,
    pub(super) kto_tag: Option<String>,
}

/// `tags`: how messages say who speaks, and what.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tags {
    pub(super) role: Option<String>,
    pub(super) content: Option<String>,
    pub(super) user: Option<String>,
    pub(super) assistant: Option<String>,
    pub(super) observation: Option<String>,
    pub(super) function: Option<String>,
    pub(super) system: Option<String>,
}

/// Why a row cannot be used: it is dropped and counted, or the run ends.
pub(in crate::data) enum Refusal {
    Drop(Cow<'static, str>),
    Fail(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Fail(error)
    }
}

pub(super) fn dropped<T>(reason: &'static str) -> std::result::Result<T, Refusal> {
    Err(Refusal::Drop(Cow::Borrowed(reason)))
}

impl Kind {
    /// Its name in `dataset_info.json`.
    pub(in crate::data) fn name(self) -> &'static str {
        match self {
            Kind::Alpaca => "alpaca",
            Kind::ShareGpt => "sharegpt",
            Kind::OpenAi => "openai",
        }
    }
}

pub(super) fn named(name: &str) -> Option<String> {
    Some(name.to_owned())
}

impl Columns {
    /// The names of LLaMA-Factory where an entry names none.
    pub(super) fn default_names() -> Columns {
        Columns {
            prompt: named("instruction"),
            query: named("input"),
            response: named("output"),
            messages: named("conversations"),
            ..Columns::none()
        }
    }

    /// The names that files without an entry use.
    pub(super) fn usual(messages: &str) -> Columns {
        Columns {
            messages: named(messages),
            history: named("history"),
            system: named("system"),
            tools: named("tools"),
            images: named("images"),
            videos: named("videos"),
            audios: named("audios"),
            chosen: named("chosen"),
            rejected: named("rejected"),
            kto_tag: named("kto_tag"),
            ..Columns::default_names()
        }
    }

    pub(super) fn none() -> Columns {
        Columns {
            prompt: None,
            query: None,
            response: None,
            history: None,
            messages: None,
            system: None,
            tools: None,
            images: None,
            videos: None,
            audios: None,
            chosen: None,
            rejected: None,
            kto_tag: None,
        }
    }
}

impl Tags {
    /// The tags of LLaMA-Factory where an entry names none.
    pub(super) fn default_names() -> Tags {
        Tags {
            role: named("from"),
            content: named("value"),
            user: named("human"),
            assistant: named("gpt"),
            observation: named("observation"),
            function: named("function_call"),
            system: named("system"),
        }
    }

    /// Those of OpenAI's messages.
    pub(super) fn of_openai() -> Tags {
        Tags {
            role: named("role"),
            content: named("content"),
            user: named("user"),
            assistant: named("assistant"),
            observation: named("tool"),
            function: named("function"),
            system: named("system"),
        }
    }

    pub(super) fn none() -> Tags {
        let none = None;
        Tags {
            role: none.clone(),
            content: none.clone(),
            user: none.clone(),
            assistant: none.clone(),
            observation: none.clone(),
            function: none.clone(),
            system: none,
        }
    }
}

/// What a value is, for people.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Whether a value says nothing.
pub(in crate::data) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The value in a column that is named and not null.
pub(super) fn value<'r>(row: &'r Row, column: &Option<String>) -> Option<&'r Value> {
    row.get(column.as_ref()?).filter(|value| !value.is_null())
}

/// A list, also one that is written as a text, as files without lists have it.
pub(super) fn list_in(value: &Value) -> Option<Cow<'_, [Value]>> {
    match value {
        Value::Array(list) => Some(Cow::Borrowed(list)),
        Value::String(text) if text.trim_start().starts_with('[') => {
            serde_json::from_str(text).ok().map(Cow::Owned)
        }
        _ => None,
    }
}

/// The text in a column; empty where there is none.
pub(super) fn text(
    row: &Row,
    column: &Option<String>,
    record: &Record,
) -> std::result::Result<String, Refusal> {
    match value(row, column) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => {
            let column = column.as_deref().unwrap_or_default();
            let cause = format!("column \"{column}\" holds {} where a string is expected", kind_of(other));
            Err(record.error(cause, "write the text as a string, or remove the record").into())
        }
    }
}

/// An answer of the assistant.
pub(super) fn answer(text: impl Into<String>) -> Message {
    Message::new("assistant", text)
}
