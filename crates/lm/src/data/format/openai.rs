//! openai: messages as OpenAI writes them, with calls of functions beside the text.

use serde_json::Value;

use super::super::example::{Example, Message};
use super::super::record::Record;
use super::columns::{Format, Refusal, Row, dropped};
use super::turns::{Begin, Role, begin, compared, example, listed, one, role_of};

pub(super) fn read(format: &Format, row: &Row, record: &Record) -> Result<Example, Refusal> {
    read_messages(format, row, &listed(format, row, record)?, compared(format, row), record)
}

/// The messages of a row, and the two answers to them where it has those.
pub(super) fn read_messages(
    format: &Format,
    row: &Row,
    messages: &[Value],
    answers: [Option<&Value>; 2],
    record: &Record,
) -> Result<Example, Refusal> {
    let Begin { system, tools, rest } = begin(format, row, messages, record)?;
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
    example(format, row, (system, tools), messages, answers)
}
