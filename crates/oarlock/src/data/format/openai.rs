//! openai: messages as OpenAI writes them, with calls of functions beside the text.

use super::super::example::{Example, Message};
use super::super::source::Record;
use super::turns::{Begin, Role, begin, example, listed, one, preferred, role_of};
use super::{Format, Refusal, Row, dropped};

pub(super) fn read(format: &Format, row: &Row, record: &Record) -> Result<Example, Refusal> {
    let Begin { system, tools, rest } = begin(format, row, listed(format, row, record)?, record)?;
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
    example(format, row, (system, tools), messages, |said| preferred(format, said))
}
