//! sharegpt: a list of messages, each with a tag that says who speaks.

use super::super::example::Example;
use super::super::record::Record;
use super::columns::{Format, Refusal, Row, dropped};
use super::turns::{Begin, begin, compared, example, listed, one, role_of};

pub(super) fn read(format: &Format, row: &Row, record: &Record) -> Result<Example, Refusal> {
    let listed = listed(format, row, record)?;
    let Begin { system, tools, rest } = begin(format, row, &listed, record)?;
    let mut messages = Vec::with_capacity(rest.len());
    for (i, said) in rest.iter().enumerate() {
        let role = role_of(format, said)?;
        if !(if i % 2 == 0 { role.asks() } else { role.answers() }) {
            return dropped("its roles do not alternate (Invalid role tag)");
        }
        messages.push(one(format, role, said)?);
    }
    example(format, row, (system, tools), messages, compared(format, row))
}
