//! What a layout is made of: the text around messages, in slots.

use std::borrow::Cow;

use serde::Deserialize;

use super::super::error::{Error, Result};
use super::super::tokenizer::Tokenizer;

/// What stands for the message in a slot.
pub(super) const CONTENT: &str = "{{content}}";

/// The text around messages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::data) struct Layout {
    /// A user's message, with the header of the answer behind it.
    #[serde(default = "content")]
    pub(super) user: Vec<Slot>,
    pub(super) assistant: Option<Vec<Slot>>,
    #[serde(default = "content")]
    pub(super) system: Vec<Slot>,
    /// An answer that calls functions; unset: as another answer.
    pub(super) function: Option<Vec<Slot>>,
    /// The result of a function; unset: as a user's message.
    pub(super) observation: Option<Vec<Slot>>,
    /// Before everything.
    #[serde(default)]
    pub(super) prefix: Vec<Slot>,
    /// How functions are described.
    #[serde(default = "default_tools")]
    pub(super) tools: Cow<'static, str>,
    /// How calls are written.
    #[serde(default = "default_tools")]
    pub(super) calls: Cow<'static, str>,
    #[serde(default)]
    pub(super) default_system: String,
    /// What ends an answer; with `replace_eos` the first is the end token.
    #[serde(default)]
    pub(super) stop_words: Vec<String>,
    /// Around a thought.
    #[serde(default = "thought")]
    pub(super) thought: (String, String),
    /// Whether an empty thought is the closing word alone.
    #[serde(default)]
    pub(super) closes_only: bool,
    /// Answers have no end of their own: the beginning of the next turn learns it.
    #[serde(default)]
    pub(super) efficient_eos: bool,
    #[serde(default)]
    pub(super) replace_eos: bool,
    #[serde(default)]
    pub(super) class: Class,
}

/// A part of what stands around a message.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Slot {
    /// A text, perhaps with the message in it.
    Text(String),
    /// One token, by its text.
    Token { token: String },
    /// The tokenizer's begin or end token; nothing where it has none.
    Special { special: Special },
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Special {
    Bos,
    Eos,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Class {
    #[default]
    Plain,
    /// The system message stands inside the first message of the user.
    Llama2,
    /// Answers have thoughts.
    Reasoning,
}

fn content() -> Vec<Slot> {
    vec![Slot::Text(CONTENT.into())]
}

fn default_tools() -> Cow<'static, str> {
    "default".into()
}

fn thought() -> (String, String) {
    ("<think>\n".into(), "\n</think>\n\n".into())
}

impl Layout {
    /// The end token under this layout: with `replace_eos` the first stop word, else the tokenizer's.
    ///
    /// # Errors
    /// A stop word that is not a token of the tokenizer.
    pub(in crate::data) fn end_token(&self, tokenizer: &Tokenizer) -> Result<Option<u32>> {
        let word = match (self.replace_eos, self.stop_words.first(), tokenizer.special().eos) {
            (true, Some(word), _) => word.as_str(),
            (_, _, Some(eos)) => return Ok(Some(eos)),
            (_, _, None) => return tokenizer.id_of("<|endoftext|>"),
        };
        match tokenizer.id_of(word)? {
            Some(id) => Ok(Some(id)),
            None => Err(setting(format!(
                "its end token {word} is not a token of this tokenizer; take the template of the model's family, or leave \
                 the key out"
            ))),
        }
    }

    /// Whether answers have no end token of their own, so that the next turn learns it.
    pub(in crate::data) fn ends_late(&self) -> bool {
        self.efficient_eos
    }

    /// The words that end an answer.
    pub(in crate::data) fn stop_words(&self) -> &[String] {
        &self.stop_words
    }

    /// Everything that decides which tokens come out.
    pub(in crate::data) fn identity(&self) -> String {
        format!("{self:?}")
    }
}

pub(super) fn setting(cause: String) -> Error {
    Error::Setting { key: "template", cause }
}
