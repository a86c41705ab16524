//! openai: messages as OpenAI writes them, with calls of functions beside the text.

use serde_json::{Map, Value};

use super::super::example::{Example, Message};
use super::super::source::Record;
use super::calls::with_objects;
use super::turns::{Role, content_of, example, listed, message, role_of, system};
use super::{Format, Refusal, Row, dropped};

pub(super) fn read(format: &Format, row: &Row, record: &Record) -> Result<Example, Refusal> {
    let (system, rest) = system(format, row, listed(format, row, record)?, record)?;
    let mut messages: Vec<Message> = Vec::with_capacity(rest.len());
    let mut asked = false;
    for said in rest {
        let role = role_of(format, said)?;
        let follows = role == Role::Observation && messages.last().is_some_and(|last| last.role == "tool");
        if !follows {
            if !(if asked { role.answers() } else { role.asks() }) {
                return dropped("its roles do not alternate (Invalid role tag)");
            }
            asked = !asked;
        }
        messages.push(one(format, role, said)?);
    }
    example(format, row, system, messages, |said: &Value| {
        let role = role_of(format, said)?;
        match role.answers() {
            true => one(format, role, said),
            false => dropped("one of its two answers is not the assistant's (Invalid role tag)"),
        }
    })
}

/// A message with what stands beside its role and its text.
fn one(format: &Format, role: Role, said: &Value) -> Result<Message, Refusal> {
    let content = content_of(format, said)?;
    let calls = said.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty());
    let mut message = match calls {
        Some(calls) if role.answers() => {
            let mut message = Message::new("assistant", content);
            message.extra.insert("tool_calls".into(), with_objects(calls)?);
            message
        }
        _ => message(role, content)?,
    };
    let own = [&format.tags.role, &format.tags.content];
    let is_own = |name: &String| name == "tool_calls" || own.iter().any(|tag| tag.as_ref() == Some(name));
    let beside = said.as_object().into_iter().flat_map(Map::iter);
    message
        .extra
        .extend(beside.filter(|(name, _)| !is_own(name)).map(|(name, value)| (name.clone(), value.clone())));
    Ok(message)
}
