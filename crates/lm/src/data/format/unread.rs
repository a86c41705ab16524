//! What a row holds that nothing reads: columns that its format does not name, or by which rows of its kind are not read.

use serde_json::Value;

use super::super::example::{Conversation, Example};
use super::columns::{Format, Kind, Row, is_empty, kind_of, list_in, value};
use super::pair;

impl Format {
    /// What of a row is not in the example that it became.
    pub(super) fn unread(&self, row: &Row, example: &Example) -> Vec<String> {
        let columns = &self.columns;
        let read = self.read_columns(row);
        let is_read = |name: &String| read.iter().any(|column| column.as_ref() == Some(name));
        let mut unread: Vec<String> = (row.iter())
            .filter(|(name, value)| !is_read(name) && !is_empty(value))
            .map(|(name, _)| format!("column \"{name}\""))
            .collect();
        if let Some(tag) = value(row, &columns.kto_tag).filter(|tag| !tag.is_boolean()) {
            let column = columns.kto_tag.as_deref().unwrap_or_default();
            unread.push(format!("column \"{column}\", which is {}, not true or false,", kind_of(tag)));
        }
        let conversation = match example {
            Example::Text(_) => return unread,
            Example::Conversation(conversation) => conversation,
            Example::UnpairedPreference(judged) => &judged.conversation,
            Example::Pair(pair) => &pair.prompt,
        };
        if let (Some(name), Some(system)) = (&columns.system, value(row, &columns.system))
            && !is_empty(system)
            && system.as_str() != conversation.system.as_deref()
        {
            unread.push(format!("column \"{name}\" beside a message of the system"));
        }
        if let Some(asked) = pair::Conversations::of(self, row).and_then(|_| self.asked(row))
            && let Some(name) = asked.column.filter(|_| !asked.is_in(conversation))
        {
            unread.push(format!("column \"{name}\" beside two whole conversations that begin otherwise"));
        }
        unread
    }

    /// The columns by which a row is read.
    fn read_columns(&self, row: &Row) -> Vec<&Option<String>> {
        let columns = &self.columns;
        let mut read = vec![&columns.system, &columns.tools, &columns.kto_tag];
        read.extend([&columns.images, &columns.videos, &columns.audios]);
        let answers = [&columns.chosen, &columns.rejected];
        if pair::Conversations::of(self, row).is_some() {
            read.extend(answers);
            read.push(match list_in_column(row, &columns.messages) {
                Some(_) => &columns.messages,
                None => &columns.prompt,
            });
            return read;
        }
        let is_unpaired = value(row, &columns.kto_tag).is_some_and(Value::is_boolean);
        match self.kind {
            Kind::Alpaca => {
                read.extend([&columns.prompt, &columns.query, &columns.history]);
                match self.ranking && !is_unpaired {
                    true => read.extend(answers),
                    false => read.push(&columns.response),
                }
            }
            Kind::ShareGpt | Kind::OpenAi => {
                read.push(&columns.messages);
                if self.ranking && !is_unpaired {
                    read.extend(answers);
                }
            }
        }
        read
    }

    /// What a row with two whole conversations says of their beginning in a column of its own.
    fn asked<'r>(&'r self, row: &'r Row) -> Option<Asked<'r>> {
        let columns = &self.columns;
        let messages = list_in_column(row, &columns.messages).filter(|_| columns.messages != columns.chosen);
        let (column, messages) = match messages {
            Some(messages) => (&columns.messages, messages),
            None => match list_in_column(row, &columns.prompt) {
                Some(messages) => (&columns.prompt, messages),
                None => {
                    let question = value(row, &columns.prompt)?.as_str()?;
                    return Some(Asked {
                        column: columns.prompt.as_deref(),
                        texts: vec![question.to_owned()],
                    });
                }
            },
        };
        let tag = self.tags.content.as_deref().unwrap_or("content");
        let text = |message: &Value| {
            message.get(tag).or_else(|| message.get("content"))?.as_str().map(str::to_owned)
        };
        Some(Asked { column: column.as_deref(), texts: messages.iter().filter_map(text).collect() })
    }
}

/// Texts of a column.
struct Asked<'r> {
    column: Option<&'r str>,
    texts: Vec<String>,
}

impl Asked<'_> {
    /// Whether a conversation says all of them.
    fn is_in(&self, conversation: &Conversation) -> bool {
        let is_said = |text: &String| {
            conversation.system.as_ref() == Some(text)
                || conversation.messages.iter().any(|said| said.content == *text)
        };
        self.texts.iter().filter(|text| !text.is_empty()).all(is_said)
    }
}

fn list_in_column<'r>(row: &'r Row, column: &Option<String>) -> Option<std::borrow::Cow<'r, [Value]>> {
    value(row, column).and_then(list_in)
}
