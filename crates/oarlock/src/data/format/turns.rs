//! What sharegpt and openai share: messages that alternate, and what a row with them is.

use serde_json::Value;

use super::super::example::{Conversation, Example, Judged, Message, Pair};
use super::super::source::Record;
use super::calls::called;
use super::{Format, Refusal, Row, dropped, kind_of, text, tools, value};

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
    let Some(tag) = tag else { return dropped("a message does not say who speaks") };
    let known = [
        (&tags.user, Role::User),
        (&tags.assistant, Role::Assistant),
        (&tags.observation, Role::Observation),
        (&tags.function, Role::Function),
        (&tags.system, Role::System),
    ];
    match known.into_iter().find(|(known, _)| known.as_deref() == Some(tag)) {
        Some((_, role)) => Ok(role),
        None => dropped("a message has an unknown role (Invalid role tag)"),
    }
}

/// The text of a message; empty where it is null, as that of a message that only calls functions.
pub(super) fn content_of(format: &Format, message: &Value) -> Result<String, Refusal> {
    match format.tags.content.as_ref().and_then(|tag| message.get(tag)) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(_)) => dropped("a message is a list of parts; only texts are read"),
        Some(_) => dropped("a message holds no text"),
    }
}

/// A message as templates see it.
pub(super) fn message(role: Role, content: String) -> Result<Message, Refusal> {
    Ok(match role {
        Role::System => Message::new("system", content),
        Role::User => Message::new("user", content),
        Role::Assistant => Message::new("assistant", content),
        Role::Observation => Message::new("tool", content),
        Role::Function => called(&content)?,
    })
}

/// The list of messages of a row.
pub(super) fn listed<'r>(format: &Format, row: &'r Row, record: &Record) -> Result<&'r [Value], Refusal> {
    let column = format.columns.messages.as_deref().unwrap_or_default();
    match row.get(column) {
        Some(Value::Array(messages)) => Ok(messages),
        Some(other) => {
            let cause = format!("column \"{column}\" holds {} where a list is expected", kind_of(other));
            Err(record.error(cause, "write the messages as a list, or remove the record").into())
        }
        None => {
            let found: Vec<&str> = row.keys().take(12).map(String::as_str).collect();
            let cause = format!("no column \"{column}\"; the columns are {}", found.join(", "));
            let remedy = "name the column in dataset_info.json: \"columns\": {\"messages\": \"...\"}";
            Err(record.error(cause, remedy).into())
        }
    }
}

/// The system's message that begins the list, or else the column's, and the messages after it.
pub(super) fn system<'m>(
    format: &Format,
    row: &Row,
    messages: &'m [Value],
    record: &Record,
) -> Result<(Option<String>, &'m [Value]), Refusal> {
    let (said, rest) = match messages.split_first() {
        Some((first, rest)) if matches!(role_of(format, first), Ok(Role::System)) => {
            (content_of(format, first)?, rest)
        }
        _ => (text(row, &format.columns.system, record)?, messages),
    };
    Ok((Some(said).filter(|system| !system.is_empty()), rest))
}

/// What a row is whose `messages` were read.
pub(super) fn example(
    format: &Format,
    row: &Row,
    system: Option<String>,
    messages: Vec<Message>,
    answers: impl Fn(&Value) -> Result<Message, Refusal>,
) -> Result<Example, Refusal> {
    let n_turns = turns(&messages);
    if n_turns.is_multiple_of(2) == format.ranking {
        return dropped("it does not end with an answer (Invalid message count)");
    }
    if n_turns == 0 {
        return dropped("it has no message");
    }
    let columns = &format.columns;
    let conversation = Conversation { system, tools: tools(row, format)?, messages };
    if let Some(Value::Bool(desired)) = value(row, &columns.kto_tag) {
        return Ok(Example::Judged(Box::new(Judged { conversation, desired: *desired })));
    }
    if !format.ranking {
        return Ok(Example::Conversation(conversation));
    }
    let (Some(chosen), Some(rejected)) = (value(row, &columns.chosen), value(row, &columns.rejected)) else {
        return dropped("it lacks one of its two answers (chosen and rejected)");
    };
    let (chosen, rejected) = (answers(chosen)?, answers(rejected)?);
    Ok(Example::Pair(Box::new(Pair { prompt: conversation, chosen, rejected })))
}

/// Messages, of which tools' results that follow each other count as one.
fn turns(messages: &[Message]) -> usize {
    let follows = |pair: &[Message]| pair[0].role == "tool" && pair[1].role == "tool";
    messages.len() - messages.windows(2).filter(|pair| follows(pair)).count()
}
