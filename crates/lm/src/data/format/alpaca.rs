//! alpaca: one question in two columns and its answer, after a history of pairs.

use serde_json::Value;

use super::super::example::{Conversation, Example, Message, Pair, UnpairedPreference};
use super::super::record::{Record, or_unwrap};
use super::calls::tools;
use super::columns::{Format, Refusal, Row, answer, dropped, list_in, text, value};

const BROKEN_HISTORY: &str = "its history is not a list of pairs of texts";

pub(super) fn read(format: &Format, row: &Row, record: &Record) -> Result<Example, Refusal> {
    let columns = &format.columns;
    let is_there = |column: &Option<String>| column.as_ref().is_some_and(|name| row.contains_key(name));
    if !is_there(&columns.prompt) && !is_there(&columns.query) {
        let wanted: Vec<&str> =
            [&columns.prompt, &columns.query].into_iter().flatten().map(String::as_str).collect();
        let found: Vec<&str> = row.keys().take(12).map(String::as_str).collect();
        let none = match wanted.is_empty() {
            true => "\"columns\" of its entry names neither prompt nor query".to_owned(),
            false => format!("no column \"{}\"", wanted.join("\" or \"")),
        };
        let cause = format!("{none}; the columns are {}", found.join(", "));
        let remedy = "name the columns in dataset_info.json: \"columns\": {\"prompt\": \"...\"}";
        return Err(record.error(cause, &or_unwrap(remedy, row)).into());
    }
    let mut messages = Vec::new();
    if let Some(history) = value(row, &columns.history) {
        let Some(history) = list_in(history) else { return dropped(BROKEN_HISTORY) };
        for turn in history.iter() {
            let pair = turn.as_array().map(Vec::as_slice);
            let Some([Value::String(asked), Value::String(answered)]) = pair else {
                return dropped(BROKEN_HISTORY);
            };
            messages.extend([Message::new("user", asked.as_str()), answer(answered)]);
        }
    }
    let (prompt, query) = (text(row, &columns.prompt, record)?, text(row, &columns.query, record)?);
    let question: Vec<&str> = [prompt.as_str(), &query].into_iter().filter(|part| !part.is_empty()).collect();
    messages.push(Message::new("user", question.join("\n")));
    let system = Some(text(row, &columns.system, record)?).filter(|system| !system.is_empty());
    let mut conversation =
        Conversation { system, tools: tools(value(row, &format.columns.tools))?, messages };
    let response = || value(row, &columns.response).and_then(Value::as_str);
    if let Some(Value::Bool(desired)) = value(row, &columns.kto_tag) {
        let Some(response) = response() else { return dropped("it has no answer") };
        conversation.messages.push(answer(response));
        return Ok(Example::UnpairedPreference(Box::new(UnpairedPreference {
            conversation,
            desired: *desired,
        })));
    }
    if format.ranking {
        let said = |column| value(row, column).and_then(Value::as_str);
        let (Some(chosen), Some(rejected)) = (said(&columns.chosen), said(&columns.rejected)) else {
            return dropped("it lacks one of its two answers (chosen and rejected)");
        };
        return Ok(Example::Pair(Box::new(Pair {
            prompt: conversation,
            chosen: answer(chosen),
            rejected: answer(rejected),
        })));
    }
    let Some(response) = response() else { return dropped("it has no answer") };
    conversation.messages.push(answer(response));
    Ok(Example::Conversation(conversation))
}
