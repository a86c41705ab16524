//! Chat layouts by name, as LLaMA-Factory registers them: which text stands around each message, and where it ends.
//!
//! `layouts.json` holds one line for each (bench/golden/make_layouts.py writes it). A conversation becomes tokens slot by
//! slot, each text by itself, so that the boundaries of slots are boundaries of tokens.

mod jinja;
mod tools;
mod turns;

use std::borrow::Cow;

use oarlock_config::config::ChatArgs;
use oarlock_config::nearest::nearest_of;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::{Error, Result};
use super::tokenizer::Tokenizer;

pub(super) use tools::ToolFormat;
pub(super) use turns::Turn;

/// The layouts, by name.
const LAYOUTS: &str = include_str!("layouts.json");
/// What stands for the message in a slot.
const CONTENT: &str = "{{content}}";

/// The text around messages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Layout {
    /// A user's message, with the header of the answer behind it.
    #[serde(default = "content")]
    user: Vec<Slot>,
    assistant: Option<Vec<Slot>>,
    #[serde(default = "content")]
    system: Vec<Slot>,
    /// An answer that calls functions; unset: as another answer.
    function: Option<Vec<Slot>>,
    /// The result of a function; unset: as a user's message.
    observation: Option<Vec<Slot>>,
    /// Before everything.
    #[serde(default)]
    prefix: Vec<Slot>,
    /// How functions are described.
    #[serde(default = "default_tools")]
    tools: Cow<'static, str>,
    /// How calls are written.
    #[serde(default = "default_tools")]
    calls: Cow<'static, str>,
    #[serde(default)]
    default_system: String,
    /// What ends an answer; with `replace_eos` the first is the end token.
    #[serde(default)]
    stop_words: Vec<String>,
    /// Around a thought.
    #[serde(default = "thought")]
    thought: (String, String),
    /// Whether an empty thought is the closing word alone.
    #[serde(default)]
    closes_only: bool,
    /// Answers have no end of their own: the beginning of the next turn learns it.
    #[serde(default)]
    efficient_eos: bool,
    #[serde(default)]
    replace_eos: bool,
    #[serde(default)]
    class: Class,
}

/// A part of what stands around a message.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Slot {
    /// A text, perhaps with the message in it.
    Text(String),
    /// One token, by its text.
    Token { token: String },
    /// The tokenizer's begin or end token; nothing where it has none.
    Special { special: Special },
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Special {
    Bos,
    Eos,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Class {
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
    /// The layout of this name.
    ///
    /// # Errors
    /// A name that is none.
    pub(super) fn named(name: &str) -> Result<Layout> {
        let known: Map<String, Value> = serde_json::from_str(LAYOUTS)
            .map_err(|e| setting(format!("the table of layouts is broken: {e}")))?;
        let Some(found) = known.get(name) else {
            let names = || known.keys().map(String::as_str);
            // Who names a model more exactly than its template is called.
            let begins = || {
                names()
                    .filter(|known| known.len() > 3 && name.starts_with(known))
                    .max_by_key(|known| known.len())
            };
            let hint = match nearest_of(name, names()).or_else(begins) {
                Some(near) => format!("did you mean {near}?"),
                None => format!(
                    "there are {}; without the key the tokenizer's own chat template is taken",
                    names().collect::<Vec<_>>().join(", ")
                ),
            };
            return Err(setting(format!("Template {name} does not exist; {hint}")));
        };
        serde_json::from_value(found.clone())
            .map_err(|e| setting(format!("the layout {name} is broken: {e}")))
    }

    /// With what the configuration changes of it.
    ///
    /// # Errors
    /// A tool format that is none, or `train_on_prompt` where the layout does not allow it.
    pub(super) fn with(mut self, args: &ChatArgs) -> Result<Layout> {
        if args.train_on_prompt && self.efficient_eos {
            return Err(Error::Setting {
                key: "train_on_prompt",
                cause: "Current template does not support `train_on_prompt`: its answers have no end token of their own"
                    .into(),
            });
        }
        if let Some(name) = &args.tool_format {
            ToolFormat::named(name)?;
            self.tools = name.clone().into();
            self.calls = name.clone().into();
        }
        if let Some(system) = &args.default_system {
            self.default_system.clone_from(system);
        }
        Ok(self)
    }

    /// The end token under this layout: with `replace_eos` the first stop word, else the tokenizer's.
    ///
    /// # Errors
    /// A stop word that is not a token of the tokenizer.
    pub(super) fn end_token(&self, tokenizer: &Tokenizer) -> Result<Option<u32>> {
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
    pub(super) fn ends_late(&self) -> bool {
        self.efficient_eos
    }

    /// The words that end an answer.
    pub(super) fn stop_words(&self) -> &[String] {
        &self.stop_words
    }

    /// Everything that decides which tokens come out.
    pub(super) fn identity(&self) -> String {
        format!("{self:?}")
    }
}

/// The names of all layouts, in their order.
pub fn layout_names() -> Vec<String> {
    let known: Map<String, Value> = serde_json::from_str(LAYOUTS).unwrap_or_default();
    known.into_iter().map(|(name, _)| name).collect()
}

fn setting(cause: String) -> Error {
    Error::Setting { key: "template", cause }
}

#[cfg(test)]
mod tests;
