//! sharegpt: a list of messages, each with a tag that says who speaks.

use serde_json::Value;

use super::super::example::Example;
use super::super::source::Record;
use super::turns::{content_of, example, listed, message, role_of, system};
use super::{Format, Refusal, Row, dropped};

pub(super) fn read(format: &Format, row: &Row, record: &Record) -> Result<Example, Refusal> {
    let (system, rest) = system(format, row, listed(format, row, record)?, record)?;
    let mut messages = Vec::with_capacity(rest.len());
    for (i, said) in rest.iter().enumerate() {
        let role = role_of(format, said)?;
        if !(if i % 2 == 0 { role.asks() } else { role.answers() }) {
            return dropped("its roles do not alternate (Invalid role tag)");
        }
        messages.push(message(role, content_of(format, said)?)?);
    }
    example(format, row, system, messages, |said: &Value| {
        let role = role_of(format, said)?;
        match role.answers() {
            true => message(role, content_of(format, said)?),
            false => dropped("one of its two answers is not the assistant's (Invalid role tag)"),
        }
    })
}
