//! What sharegpt and openai share: messages that alternate, and what a row with them is.

use std::borrow::Cow;

use serde_json::Value;

use super::super::example::{Conversation, Example, Message, Pair, UnpairedPreference};
use super::super::record::{Record, or_unwrap};
use super::calls::{self, tools};
use super::columns::{Format, Refusal, Row, dropped, kind_of, list_in, text, value};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    System,
    User,
    Assistant,
    Observation,
    Function,
}

impl Role {
    /// Whether it stands where a user speaks, and not where the assistant does.
    pub(super) fn asks(self) -> bool {
        matches!(self, Role::User | Role::Observation)
    }

    pub(super) fn answers(self) -> bool {
        matches!(self, Role::Assistant | Role::Function)
    }
}

/// The tag of a message.
pub(super) fn role_of(format: &Format, message: &Value) -> Result<Role, Refusal> {
    let tags = &format.tags;
    let tag = tags.role.as_ref().and_then(|tag| message.get(tag)).and_then(Value::as_str);
    let Some(tag) = tag else {
        let field = tags.role.as_deref().unwrap_or_default();
        return Err(Refusal::Drop(format!("a message has no field \"{field}\" to say who speaks").into()));
    };
    let known = [
        (&tags.user, Role::User),
        (&tags.assistant, Role::Assistant),
        (&tags.observation, Role::Observation),
        (&tags.function, Role::Function),
        (&tags.system, Role::System),
    ];
    if let Some((_, role)) = known.iter().find(|(known, _)| known.as_deref() == Some(tag)) {
        return Ok(*role);
    }
    let names: Vec<&str> = known.iter().filter_map(|(name, _)| name.as_deref()).collect();
    let shown: String = tag.chars().take(MAX_ROLE_CHARS).collect();
    let reason =
        format!("a message has the role \"{shown}\", and known are {} (Invalid role tag)", names.join(", "));
    Err(Refusal::Drop(reason.into()))
}

/// Of the name of a role that is unknown so many characters are shown.
const MAX_ROLE_CHARS: usize = 30;

/// The text of a message, or of the parts that OpenAI's files write it in; `None` where there is none.
fn content_of(format: &Format, message: &Value) -> Result<Option<String>, Refusal> {
    match format.tags.content.as_ref().and_then(|tag| message.get(tag)) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match part["type"].as_str() {
                Some("text") => part["text"].as_str().map(str::to_owned),
                _ => None,
            };
            match parts.iter().find(|part| text(part).is_none()) {
                None => Ok(Some(parts.iter().filter_map(text).collect())),
                Some(part) => {
                    let kind: String = part["type"]
                        .as_str()
                        .unwrap_or("without a type")
                        .chars()
                        .take(MAX_ROLE_CHARS)
                        .collect();
                    let reason =
                        format!("a message has a part of type \"{kind}\", and models are of text only");
                    Err(Refusal::Drop(reason.into()))
                }
            }
        }
        Some(_) => dropped("a message holds no text"),
    }
}

/// A message as templates see it, with what stands beside its role and its text.
pub(super) fn one(format: &Format, role: Role, said: &Value) -> Result<Message, Refusal> {
    let content = content_of(format, said)?;
    let calls = calls::beside(said)?;
    let text = content.clone().unwrap_or_default();
    let mut message = match (role, calls) {
        (Role::Assistant | Role::Function, Some(calls)) => {
            let mut message = Message::new("assistant", text);
            message.extra.insert("tool_calls".into(), calls);
            message
        }
        (_, Some(_)) => return dropped("a message calls a function, and is not the assistant's"),
        // An answer of nothing would be learned.
        (Role::User | Role::Assistant, None)
            if content.is_none() && said.get("reasoning_content").is_none_or(Value::is_null) =>
        {
            return dropped("a message holds no text");
        }
        (Role::System, None) => Message::new("system", text),
        (Role::User, None) => Message::new("user", text),
        (Role::Assistant, None) => Message::new("assistant", text),
        (Role::Observation, None) => Message::new("tool", text),
        (Role::Function, None) => calls::called(&text)?,
    };
    let own = [&format.tags.role, &format.tags.content];
    let is_own = |name: &str| {
        own.iter().any(|tag| tag.as_deref() == Some(name))
            || calls::FIELDS.contains(&name)
            || ["role", "content"].contains(&name)
    };
    // Tables give every message every field of any message.
    let is_there = |(name, value): &(&String, &Value)| !is_own(name) && !value.is_null();
    let beside = said.as_object().into_iter().flatten().filter(is_there);
    message.extra.extend(beside.map(|(name, value)| (name.clone(), value.clone())));
    Ok(message)
}

/// The two answers of a row that are compared.
pub(super) fn compared<'r>(format: &Format, row: &'r Row) -> [Option<&'r Value>; 2] {
    [value(row, &format.columns.chosen), value(row, &format.columns.rejected)]
}

/// One of two answers that are compared.
fn preferred(format: &Format, said: &Value) -> Result<Message, Refusal> {
    let role = role_of(format, said)?;
    match role.answers() {
        true => one(format, role, said),
        false => dropped("one of its two answers is not the assistant's (Invalid role tag)"),
    }
}

/// The list of messages of a row.
pub(super) fn listed<'r>(
    format: &Format,
    row: &'r Row,
    record: &Record,
) -> Result<Cow<'r, [Value]>, Refusal> {
    let Some(column) = format.columns.messages.as_deref() else {
        return dropped("its two answers are not lists of messages, and no column of messages is named");
    };
    match row.get(column) {
        Some(Value::Null) => dropped("it has no message"),
        Some(found) => list_in(found).ok_or_else(|| {
            let cause = format!("column \"{column}\" holds {} where a list is expected", kind_of(found));
            record.error(cause, "write the messages as a list, or remove the record").into()
        }),
        None => {
            let found: Vec<&str> = row.keys().take(12).map(String::as_str).collect();
            let cause = format!("no column \"{column}\"; the columns are {}", found.join(", "));
            let remedy = "name the column in dataset_info.json: \"columns\": {\"messages\": \"...\"}";
            Err(record.error(cause, &or_unwrap(remedy, row)).into())
        }
    }
}

/// What stands before the first question, and the messages from there on.
pub(super) struct Begin<'m> {
    pub(super) system: Option<String>,
    pub(super) tools: Option<Value>,
    pub(super) rest: &'m [Value],
}

/// The system's message that begins the list, or else the column's; the functions are in a column, or, as in MiniMind's
/// files, in that message.
pub(super) fn begin<'m>(
    format: &Format,
    row: &Row,
    messages: &'m [Value],
    record: &Record,
) -> Result<Begin<'m>, Refusal> {
    let of_row = tools(value(row, &format.columns.tools))?;
    let (said, of_message, rest) = match messages.split_first() {
        Some((first, rest)) if matches!(role_of(format, first), Ok(Role::System)) => {
            let of_message = tools(first.get("tools").filter(|tools| !tools.is_null()))?;
            (content_of(format, first)?.unwrap_or_default(), of_message, rest)
        }
        _ => (text(row, &format.columns.system, record)?, None, messages),
    };
    let tools = match (of_row, of_message) {
        (Some(of_row), Some(of_message)) if of_row != of_message => {
            return dropped("its tools are in a column and in the system's message, and differ");
        }
        (of_row, of_message) => of_row.or(of_message),
    };
    Ok(Begin { system: Some(said).filter(|system| !system.is_empty()), tools, rest })
}

/// What a row is whose `messages` were read.
pub(super) fn example(
    format: &Format,
    row: &Row,
    (system, tools): (Option<String>, Option<Value>),
    messages: Vec<Message>,
    answers: [Option<&Value>; 2],
) -> Result<Example, Refusal> {
    let n_turns = turns(&messages);
    if n_turns.is_multiple_of(2) == format.ranking {
        return dropped("it does not end with an answer (Invalid message count)");
    }
    if n_turns == 0 {
        return dropped("it has no message");
    }
    let columns = &format.columns;
    let conversation = Conversation { system, tools, messages };
    if let Some(Value::Bool(desired)) = value(row, &columns.kto_tag) {
        return Ok(Example::UnpairedPreference(Box::new(UnpairedPreference {
            conversation,
            desired: *desired,
        })));
    }
    if !format.ranking {
        return Ok(Example::Conversation(conversation));
    }
    let [Some(chosen), Some(rejected)] = answers else {
        return dropped("it lacks one of its two answers (chosen and rejected)");
    };
    let (chosen, rejected) = (preferred(format, chosen)?, preferred(format, rejected)?);
    Ok(Example::Pair(Box::new(Pair { prompt: conversation, chosen, rejected })))
}

/// Messages, of which tools' results that follow each other count as one.
fn turns(messages: &[Message]) -> usize {
    let follows = |pair: &[Message]| pair[0].role == "tool" && pair[1].role == "tool";
    messages.len() - messages.windows(2).filter(|pair| follows(pair)).count()
}
