//! How the rows of a data set are written: alpaca, sharegpt or openai, with the columns and tags that
//! `dataset_info.json` names, or those that a row of a file without an entry shows by its keys.

mod alpaca;
mod calls;
mod entry;
mod openai;
mod pair;
mod sharegpt;
mod turns;
mod unread;

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::error::{Error, Result};
use super::example::{Example, Message};
use super::source::{Record, or_unwrap};

/// A row as JSON.
type Row = Map<String, Value>;

/// What the rows of a data set look like.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Format {
    kind: Kind,
    /// Whether rows hold a chosen and a rejected answer.
    ranking: bool,
    columns: Columns,
    tags: Tags,
}

/// `formatting`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Alpaca,
    ShareGpt,
    OpenAi,
}

/// `columns`: which column holds what.
#[derive(Clone, Debug, PartialEq)]
struct Columns {
    prompt: Option<String>,
    query: Option<String>,
    response: Option<String>,
    history: Option<String>,
    messages: Option<String>,
    system: Option<String>,
    tools: Option<String>,
    images: Option<String>,
    videos: Option<String>,
    audios: Option<String>,
    chosen: Option<String>,
    rejected: Option<String>,
    kto_tag: Option<String>,
}

/// `tags`: how messages say who speaks, and what.
#[derive(Clone, Debug, PartialEq)]
struct Tags {
    role: Option<String>,
    content: Option<String>,
    user: Option<String>,
    assistant: Option<String>,
    observation: Option<String>,
    function: Option<String>,
    system: Option<String>,
}

/// What a row turned out to be.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reading {
    /// Something to learn from.
    Example(Example),
    /// Nothing that can be used, for this reason.
    Dropped(Cow<'static, str>),
}

/// A row that was read.
pub(super) struct Read {
    pub(super) reading: Reading,
    /// As which format, where none is written.
    pub(super) guessed: Option<Kind>,
    /// What it holds that is not in the example.
    pub(super) unread: Vec<String>,
}

/// Why a row cannot be used: it is dropped and counted, or the run ends.
pub(super) enum Refusal {
    Drop(Cow<'static, str>),
    Fail(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Fail(error)
    }
}

fn dropped<T>(reason: &'static str) -> std::result::Result<T, Refusal> {
    Err(Refusal::Drop(Cow::Borrowed(reason)))
}

impl Kind {
    /// Its name in `dataset_info.json`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Alpaca => "alpaca",
            Kind::ShareGpt => "sharegpt",
            Kind::OpenAi => "openai",
        }
    }
}

fn named(name: &str) -> Option<String> {
    Some(name.to_owned())
}

impl Columns {
    /// The names of LLaMA-Factory where an entry names none.
    fn default_names() -> Columns {
        Columns {
            prompt: named("instruction"),
            query: named("input"),
            response: named("output"),
            messages: named("conversations"),
            ..Columns::none()
        }
    }

    /// The names that files without an entry use.
    fn usual(messages: &str) -> Columns {
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

    fn none() -> Columns {
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
    fn default_names() -> Tags {
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
    fn of_openai() -> Tags {
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

    fn none() -> Tags {
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

impl Format {
    /// What the keys of a row without an entry say it is; `None` where they say nothing.
    fn guess(row: &Row) -> Option<Format> {
        let of = |kind, messages: &str, tags| {
            let ranking = row.contains_key("chosen") && row.contains_key("rejected");
            Some(Format { kind, ranking, columns: Columns::usual(messages), tags })
        };
        if row.contains_key("messages") {
            return of(Kind::OpenAi, "messages", Tags::of_openai());
        }
        if let Some(messages) = row.get("conversations") {
            let first = messages.get(0);
            return match first.is_some_and(|message| message.get("role").is_some()) {
                true => of(Kind::OpenAi, "conversations", Tags::of_openai()),
                false => of(Kind::ShareGpt, "conversations", Tags::default_names()),
            };
        }
        if row.contains_key("instruction") {
            return of(Kind::Alpaca, "conversations", Tags::none());
        }
        // Pairs as TRL and MiniMind write them: whole conversations, or answers to a prompt.
        let chosen = row.get("chosen").filter(|_| row.contains_key("rejected"))?;
        let kind = if list_in(chosen).is_some() { Kind::OpenAi } else { Kind::Alpaca };
        let columns = Columns { prompt: named("prompt"), ..Columns::usual("messages") };
        Some(Format { kind, ranking: true, columns, tags: Tags::of_openai() })
    }

    /// Reads a row; without a format, as its keys say. Gives the format that was guessed.
    ///
    /// # Errors
    /// A record that is not a JSON object, or one without the columns that it must have, with its file and line.
    pub(super) fn read(format: Option<&Format>, record: &Record) -> Result<Read> {
        let row = match serde_json::from_str(&record.content).map_err(|e| record.json_error(&e))? {
            Value::Object(row) => row,
            other => {
                let cause = format!("the record is {} where an object is expected", kind_of(&other));
                return Err(record.error(cause, "write each record as one JSON object"));
            }
        };
        let guessed = if format.is_none() { Format::guess(&row) } else { None };
        let Some(format) = format.or(guessed.as_ref()) else {
            let columns: Vec<&str> = row.keys().take(12).map(String::as_str).collect();
            let cause = format!(
                "the columns ({}) are neither those of alpaca (instruction), sharegpt (conversations) nor openai \
                 (messages), nor pairs (chosen and rejected)",
                columns.join(", ")
            );
            let remedy = "describe the file in dataset_info.json: \"formatting\" and \"columns\" say what its columns hold";
            return Err(record.error(cause, &or_unwrap(remedy, &row)));
        };
        if let Some(error) = format.by_columns(&row, record) {
            return Err(error);
        }
        let (reading, unread) = match format.example(&row, record) {
            Ok(example) => {
                let unread = format.unread(&row, &example);
                (Reading::Example(example), unread)
            }
            Err(Refusal::Drop(reason)) => (Reading::Dropped(reason), Vec::new()),
            Err(Refusal::Fail(error)) => return Err(error),
        };
        Ok(Read { reading, guessed: guessed.map(|format| format.kind), unread })
    }

    /// The error of an object that holds a whole table, a list for each column.
    fn by_columns(&self, row: &Row, record: &Record) -> Option<Error> {
        let column = |name: &Option<String>| value(row, name).and_then(Value::as_array).map(Vec::len);
        let Columns { prompt, response, .. } = &self.columns;
        let n = column(prompt).filter(|n| self.kind == Kind::Alpaca && column(response) == Some(*n))?;
        let cause = format!("the object holds a list of {n} for each column, where one record is expected");
        Some(record.error(cause, "write one object for each record"))
    }

    /// The column of what is true or false.
    pub(super) fn flag(&self) -> Option<&str> {
        self.columns.kto_tag.as_deref()
    }

    fn example(&self, row: &Row, record: &Record) -> std::result::Result<Example, Refusal> {
        let columns = &self.columns;
        for (column, reason) in [
            (&columns.images, "it has images, and models are of text only"),
            (&columns.videos, "it has videos, and models are of text only"),
            (&columns.audios, "it has sound, and models are of text only"),
        ] {
            let media = column.as_ref().and_then(|name| row.get(name));
            if media.is_some_and(|media| !is_empty(media)) {
                return dropped(reason);
            }
        }
        if let Some(pair) = pair::Conversations::of(self, row) {
            return pair.read(self, row, record);
        }
        match self.kind {
            Kind::Alpaca => alpaca::read(self, row, record),
            Kind::ShareGpt => sharegpt::read(self, row, record),
            Kind::OpenAi => openai::read(self, row, record),
        }
    }

    /// Everything of it that decides what rows mean.
    pub(super) fn identity(&self) -> String {
        format!("{self:?}")
    }

    /// Whether its rows hold pairs of answers.
    pub(super) fn is_ranking(&self) -> bool {
        self.ranking
    }
}

/// What a value is, for people.
fn kind_of(value: &Value) -> &'static str {
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
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The value in a column that is named and not null.
fn value<'r>(row: &'r Row, column: &Option<String>) -> Option<&'r Value> {
    row.get(column.as_ref()?).filter(|value| !value.is_null())
}

/// A list, also one that is written as a text, as files without lists have it.
fn list_in(value: &Value) -> Option<Cow<'_, [Value]>> {
    match value {
        Value::Array(list) => Some(Cow::Borrowed(list)),
        Value::String(text) if text.trim_start().starts_with('[') => {
            serde_json::from_str(text).ok().map(Cow::Owned)
        }
        _ => None,
    }
}

/// The text in a column; empty where there is none.
fn text(row: &Row, column: &Option<String>, record: &Record) -> std::result::Result<String, Refusal> {
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

/// Functions: a JSON list, which may be empty, or a text that holds one.
fn tools(written: Option<&Value>) -> std::result::Result<Option<Value>, Refusal> {
    let parsed = match written {
        None => return Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(tools) => tools,
            Err(_) => return dropped("its tools are not JSON (Invalid JSON format in tool description)"),
        },
        Some(tools) => tools.clone(),
    };
    let list = match parsed {
        Value::Array(list) => list,
        tool => vec![tool],
    };
    match list.iter().all(|tool| calls::function_of(tool)["name"].is_string()) {
        true => Ok(Some(Value::Array(list))),
        false => dropped("its tools are not a list of functions with names"),
    }
}

/// An answer of the assistant.
fn answer(text: impl Into<String>) -> Message {
    Message::new("assistant", text)
}

#[cfg(test)]
mod tests;
