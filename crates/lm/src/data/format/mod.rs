//! How the rows of a data set are written: alpaca, sharegpt or openai, with the columns and tags that
//! `dataset_info.json` names, or those that a row of a file without an entry shows by its keys.

mod alpaca;
mod calls;
mod columns;
mod entry;
mod openai;
mod pair;
mod sharegpt;
mod turns;
mod unread;

use std::borrow::Cow;

use serde_json::Value;

pub(super) use columns::{Format, Kind, is_empty};

use super::error::{Error, Result};
use super::example::Example;
use super::record::{Record, or_unwrap};
use columns::{Columns, Refusal, Row, Tags, dropped, kind_of, list_in, named, value};

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

#[cfg(test)]
mod tests;
