//! Pairs whose two answers are lists of messages: whole conversations that differ in their last message, or what follows a
//! prompt in another column.

use std::borrow::Cow;

use serde_json::Value;

use super::super::example::Example;
use super::super::record::Record;
use super::columns::{Format, Refusal, Row, Tags, dropped, list_in, value};
use super::openai;

/// Both lists.
pub(super) struct Conversations<'r> {
    chosen: Cow<'r, [Value]>,
    rejected: Cow<'r, [Value]>,
}

impl<'r> Conversations<'r> {
    /// Those of a row, if it has both.
    pub(super) fn of(format: &Format, row: &'r Row) -> Option<Conversations<'r>> {
        let list = |column: &Option<String>| value(row, column).and_then(list_in);
        let (chosen, rejected) = (list(&format.columns.chosen), list(&format.columns.rejected));
        Some(Conversations { chosen: chosen.filter(|_| format.ranking)?, rejected: rejected? })
    }

    pub(super) fn read(&self, format: &Format, row: &Row, record: &Record) -> Result<Example, Refusal> {
        let (Some((chosen, before)), Some((rejected, before_rejected))) =
            (self.chosen.split_last(), self.rejected.split_last())
        else {
            return dropped("it lacks one of its two answers (chosen and rejected)");
        };
        if before != before_rejected {
            return dropped("its two conversations differ in more than their last messages");
        }
        // Where the entry names no tags, the messages themselves say which they have.
        let own = format.tags.role.as_ref().is_some_and(|tag| chosen.get(tag).is_some());
        let openai = Format { tags: Tags::of_openai(), ..format.clone() };
        let format = if !own && chosen.get("role").is_some() { &openai } else { format };
        let messages = match self.prompt(format, row) {
            Some(prompt) if before.is_empty() => prompt,
            // Both lists often repeat what the prompt says.
            _ => before.to_vec(),
        };
        openai::read_messages(format, row, &messages, [Some(chosen), Some(rejected)], record)
    }

    /// What stands before the answers in a column of its own: messages, or a question.
    fn prompt(&self, format: &Format, row: &Row) -> Option<Vec<Value>> {
        let columns = &format.columns;
        let messages =
            value(row, &columns.messages).filter(|_| columns.messages != columns.chosen).and_then(list_in);
        let prompt = value(row, &columns.prompt);
        if let Some(list) = messages.or_else(|| prompt.and_then(list_in)) {
            return Some(list.into_owned());
        }
        let Tags { role, content, user, .. } = format.tags.clone();
        let question = prompt?.as_str()?;
        let fields = [(role?, user?.into()), (content?, question.into())];
        Some(vec![Value::Object(fields.into_iter().collect())])
    }
}
