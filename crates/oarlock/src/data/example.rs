//! What a record means to training: a text, a conversation, or two answers to one conversation.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::{Error, Result};
use super::source::{Content, Record};

/// What a model learns from one record.
#[derive(Clone, Debug, PartialEq)]
pub enum Example {
    /// A text, of which every token is learned.
    Text(String),
    /// A conversation, of which the assistant's messages are learned.
    Conversation(Conversation),
    /// A conversation with a better and a worse answer, of which the two answers are compared.
    Pair(Box<Pair>),
    /// A conversation with a judgement of its last answer.
    Judged(Box<Judged>),
}

/// A conversation whose last answer is wanted, or is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
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
    /// The better answer.
    pub chosen: Message,
    /// The worse answer.
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
        let Fields { messages, system, tools, chosen, rejected } = fields;
        let tools = match tools {
            // Files of LLaMA-Factory hold the list as a text.
            Some(Value::String(text)) if text.trim().is_empty() => None,
            Some(Value::String(text)) => {
                let remedy = "write tools as a JSON list of functions";
                let broken = |e: serde_json::Error| record.error(format!("tools is no JSON: {e}"), remedy);
                Some(serde_json::from_str(&text).map_err(broken)?)
            }
            tools => tools,
        };
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
