//! Chat templates: the Jinja text of a tokenizer folder that turns a conversation into the text that a model sees.
//!
//! A template is a program of whoever made the folder. It runs in bounds of memory and time ([`super::confined`]).

mod compiled;
mod spans;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use oarlock_comm::{MAX_CONFIG_BYTES, read_file, read_text};
use serde_json::{Map, Value};

use super::error::{Error, Result};
use super::example::Conversation;
use compiled::Compiled;
use spans::Spans;

pub(super) use compiled::Spaced;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    compiled: Compiled,
    source: String,
}

/// A conversation as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The whole text.
    pub text: String,
    /// What the model gives in it (places in bytes, ascending and apart): each message of the assistant, from where
    /// the generation prompt ends to the end of the turn; or the template's own `{% generation %}` blocks.
    pub assistant: Vec<Range<usize>>,
}

/// Around what stands in a `{% generation %}` block, and in the place of a message. No text has these characters.
const BEGIN: char = '\u{fdd0}';
const END: char = '\u{fdd1}';

impl ChatTemplate {
    /// Reads `chat_template.jinja`, or else `chat_template` of `tokenizer_config.json`.
    ///
    /// # Errors
    /// A folder without a template, or one that is broken.
    pub fn read(dir: &Path) -> Result<ChatTemplate> {
        let config_path = dir.join("tokenizer_config.json");
        let broken = |path: &Path, cause: String| Error::Template { path: path.into(), cause };
        let config: Map<String, Value> = match read_file(&config_path, MAX_CONFIG_BYTES) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| broken(&config_path, e.to_string()))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Map::new(),
            Err(e) => return Err(Error::read(&config_path, e)),
        };
        let file = dir.join("chat_template.jinja");
        let (source, path) = match read_text(&file, MAX_CONFIG_BYTES) {
            Ok(source) => (source, file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => match written_in(&config) {
                Some(source) => (source.to_string(), config_path),
                None => {
                    let cause = "has no chat template (chat_template in tokenizer_config.json, or chat_template.jinja); a \
                                 model that was only pretrained continues a text: use `oarlock generate`";
                    return Err(broken(dir, cause.into()));
                }
            },
            Err(e) => return Err(Error::read(&file, e)),
        };
        let tokens = config.iter().filter_map(|(name, value)| {
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            name.ends_with("_token").then(|| (name.clone(), text.to_string()))
        });
        ChatTemplate::compile(source, tokens.collect(), path)
    }

    /// Whether a folder has a chat template.
    ///
    /// # Errors
    /// A tokenizer_config.json that cannot be read or is no JSON.
    pub fn is_in(dir: &Path) -> Result<bool> {
        let path = dir.join("tokenizer_config.json");
        if dir.join("chat_template.jinja").is_file() {
            return Ok(true);
        }
        let config: Map<String, Value> = match read_file(&path, MAX_CONFIG_BYTES) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| Error::Template { path: path.clone(), cause: e.to_string() })?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(Error::read(&path, e)),
        };
        Ok(written_in(&config).is_some())
    }

    fn compile(source: String, tokens: Vec<(String, String)>, path: PathBuf) -> Result<ChatTemplate> {
        let compiled = Compiled::new(&source, tokens, path)?;
        Ok(ChatTemplate { compiled, source })
    }

    /// The Jinja text.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// An error of this template.
    pub(super) fn error(&self, cause: impl Into<String>) -> Error {
        self.compiled.error(cause)
    }

    /// The prompt that asks for the assistant's next message.
    ///
    /// # Errors
    /// What the template reports, such as roles in an order that it does not know.
    pub fn render_prompt(&self, conversation: &Conversation) -> Result<String> {
        let text =
            self.compiled.confined(conversation, |compiled, of| compiled.text(of, &of.messages, true))?;
        Ok(text.replace([BEGIN, END], ""))
    }

    /// The whole conversation, and which parts of it the assistant says.
    ///
    /// # Errors
    /// What the template reports, and a template that renders a message of the assistant so that its part cannot be
    /// told from the rest.
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered> {
        if conversation.messages.iter().any(|message| message.content.contains([BEGIN, END])) {
            return Err(self.error("a message holds the character U+FDD0 or U+FDD1, which no text has"));
        }
        self.compiled.confined(conversation, |compiled, of| Spans::new(compiled, of).render())
    }
}

/// The template of `tokenizer_config.json`: a text, or a list of named ones.
fn written_in(config: &Map<String, Value>) -> Option<&str> {
    let template = config.get("chat_template")?;
    let named =
        |list: &'_ Vec<Value>| list.iter().position(|t| t.get("name").is_some_and(|name| name == "default"));
    match template.as_array() {
        Some(list) => list.get(named(list)?)?.get("template")?.as_str(),
        None => template.as_str(),
    }
}

#[cfg(test)]
mod tests;
