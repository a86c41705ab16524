//! What a record means to training: a text, a conversation, or two answers to one conversation.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::{Error, Result};
use super::record::{Content, Record};

/// What a model learns from one record.
#[derive(Clone, Debug, PartialEq)]
pub enum Example {
    /// A text, of which every token is learned.
    Text(String),
    /// A conversation, of which the assistant's messages are learned.
    Conversation(Conversation),
    /// A conversation with a chosen and a rejected answer, of which the two answers are compared.
    Pair(Box<Pair>),
    /// A conversation with a label of its last answer.
    UnpairedPreference(Box<UnpairedPreference>),
}

/// A conversation whose last answer is wanted, or is not.
#[derive(Clone, Debug, PartialEq)]
pub struct UnpairedPreference {
    /// The conversation, the answer included.
    pub conversation: Conversation,
    /// Whether the answer is wanted.
    pub desired: bool,
}

/// Two answers to one conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// What comes before the answer.
    pub prompt: Conversation,
    /// The chosen answer.
    pub chosen: Message,
    /// The rejected answer.
    pub rejected: Message,
}

/// The messages that a chat template renders.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// What the model is told before the first message.
    pub system: Option<String>,
    /// The functions that the model may call, as a JSON list of their schemas.
    pub tools: Option<Value>,
    /// The messages in their order.
    pub messages: Vec<Message>,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Message {
    /// Who speaks: "system", "user", "assistant" or "tool".
    pub role: String,
    /// What is said.
    #[serde(default, deserialize_with = "text_or_null")]
    pub content: String,
    /// Everything else that a template may look at, such as `tool_calls` and `reasoning_content`.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_string(), content: content.into(), extra: Map::new() }
    }
}

/// A message that only calls a function has no content.
fn text_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A record that holds a conversation, and for a pair its two answers.
#[derive(Deserialize)]
struct Fields {
    #[serde(alias = "conversations")]
    messages: Vec<Message>,
    system: Option<String>,
    tools: Option<Value>,
    chosen: Option<Message>,
    rejected: Option<Message>,
}

impl Example {
    /// Reads a record of which `content` was read: a text is taken out of it as it is; an object has `messages` (or
    /// `conversations`), each with `role` and `content`, perhaps `system` and `tools`, and for a pair `chosen` and
    /// `rejected`.
    ///
    /// # Errors
    /// A record that is no such object, with its file and line.
    pub fn read(record: &mut Record, content: Content) -> Result<Example> {
        if content == Content::Text {
            return Ok(Example::Text(std::mem::take(&mut record.content)));
        }
        let fields: Fields = serde_json::from_str(&record.content).map_err(|e| record.json_error(&e))?;
        let Fields { mut messages, system, tools, mut chosen, mut rejected } = fields;
        // Files of LLaMA-Factory and of MiniMind hold these lists as texts; the latter has the functions in the system's
        // message.
        let listed = |name: &str, value: Value| -> Result<Option<Value>> {
            match value {
                Value::String(text) if text.trim().is_empty() => Ok(None),
                Value::String(text) => {
                    let broken = |e: serde_json::Error| {
                        record.error(
                            format!("{name} is not JSON: {e}"),
                            &format!("write {name} as a JSON list"),
                        )
                    };
                    serde_json::from_str(&text).map(Some).map_err(broken)
                }
                value => Ok(Some(value)),
            }
        };
        for message in messages.iter_mut().chain(&mut chosen).chain(&mut rejected) {
            if let Some(Value::String(_)) = message.extra.get("tool_calls")
                && let Some(calls) = message.extra.remove("tool_calls")
            {
                message
                    .extra
                    .extend(listed("tool_calls", calls)?.map(|calls| ("tool_calls".to_owned(), calls)));
            }
        }
        let of_system = messages.first_mut().filter(|first| first.role == "system");
        let tools = tools.or_else(|| of_system?.extra.remove("tools"));
        let tools = tools.map(|tools| listed("tools", tools)).transpose()?.flatten();
        let conversation = Conversation { system, tools, messages };
        match (chosen, rejected) {
            (None, None) => Ok(Example::Conversation(conversation)),
            (Some(chosen), Some(rejected)) => {
                Ok(Example::Pair(Box::new(Pair { prompt: conversation, chosen, rejected })))
            }
            _ => Err(record.error("only one of chosen and rejected", "give both answers, or neither")),
        }
    }
}

impl Record {
    /// What kept this record from being encoded, with its place.
    pub(super) fn explain(&self, error: Error) -> Error {
        match error {
            Error::Template { path, cause } | Error::EndlessTemplate { path, cause } => {
                let remedy = format!("repair or remove the record, or change {}", path.display());
                self.error(cause, &remedy)
            }
            Error::Tokenizer { path, cause } => {
                let cause = format!("{cause}; the record is {}:{}", self.file.display(), self.line);
                Error::Tokenizer { path, cause }
            }
            error => error,
        }
    }
}
