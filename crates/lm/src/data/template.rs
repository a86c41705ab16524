//! Chat templates: the Jinja text of a tokenizer folder that turns a conversation into the text that a model sees.
//!
//! A template is a program of whoever made the folder. It runs in bounds of memory and time ([`super::confined`]).

mod compiled;
mod rendered;
mod spans;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::added_tokens::settings;
use super::error::{Error, Result};
use super::example::Conversation;
use super::written_template::{Text, WrittenTemplate};
use compiled::Compiled;
use spans::Spans;

pub use rendered::Rendered;
use rendered::{BEGIN, END};

pub(super) use compiled::Spaced;

/// A compiled chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    compiled: Compiled,
    source: String,
    /// The template of conversations with functions, where that is another one.
    with_tools: Option<Box<ChatTemplate>>,
}

impl ChatTemplate {
    /// Reads the chat template of a folder, from any of the places where transformers looks for it.
    ///
    /// # Errors
    /// A folder without a template, files that cannot be read, a template that is broken.
    pub fn read(dir: &Path) -> Result<ChatTemplate> {
        let Some(WrittenTemplate { default, with_tools }) = WrittenTemplate::find(dir)? else {
            let cause = "has no chat template (chat_template in tokenizer_config.json, or chat_template.jinja); a \
                         model that was only pretrained continues a text: use `oarlock generate`";
            return Err(Error::Template { path: dir.into(), cause: cause.into() });
        };
        let tokens = tokens(dir)?;
        let compile = |(source, path): Text| ChatTemplate::compile(source, tokens.clone(), path);
        let with_tools = with_tools.map(compile).transpose()?.map(Box::new);
        Ok(ChatTemplate { with_tools, ..compile(default)? })
    }

    /// The Jinja texts of a folder: that of every conversation, and that of conversations with functions where it is another.
    ///
    /// # Errors
    /// As of [`is_in`](Self::is_in).
    pub(crate) fn texts(dir: &Path) -> Result<(Option<String>, Option<String>)> {
        Ok(match WrittenTemplate::find(dir)? {
            None => (None, None),
            Some(found) => (Some(found.default.0), found.with_tools.map(|(text, _)| text)),
        })
    }

    /// A template that does not stand in the folder of its tokenizer.
    pub(super) fn written(source: String, dir: &Path) -> Result<ChatTemplate> {
        ChatTemplate::compile(source, tokens(dir)?, dir.into())
    }

    /// The same, told whether the model is to think (`enable_thinking`); otherwise the template decides.
    #[must_use]
    pub fn thinking(mut self, on: bool) -> ChatTemplate {
        self.compiled.thinks = Some(on);
        self.with_tools = self.with_tools.map(|other| Box::new(other.thinking(on)));
        self
    }

    /// Whether a folder has a chat template.
    ///
    /// # Errors
    /// Files that cannot be read or are not JSON.
    pub fn is_in(dir: &Path) -> Result<bool> {
        Ok(WrittenTemplate::find(dir)?.is_some())
    }

    fn compile(source: String, tokens: Vec<(String, String)>, path: PathBuf) -> Result<ChatTemplate> {
        let compiled = Compiled::new(&source, tokens, path)?;
        Ok(ChatTemplate { compiled, source, with_tools: None })
    }

    /// Whether the text of the template has these words, such as `<tool_call>`.
    pub fn mentions(&self, words: &str) -> bool {
        self.source().contains(words)
    }

    /// The Jinja text; of several, one behind the other.
    pub(super) fn source(&self) -> Cow<'_, str> {
        match &self.with_tools {
            None => Cow::Borrowed(&self.source),
            Some(other) => Cow::Owned(format!("{}\n{}", self.source, other.source)),
        }
    }

    /// The template of this conversation.
    fn of(&self, conversation: &Conversation) -> &Compiled {
        match &self.with_tools {
            Some(other) if conversation.tools.is_some() => &other.compiled,
            _ => &self.compiled,
        }
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
        let compiled = self.of(conversation);
        let text = compiled.confined(conversation, |compiled, of| compiled.text(of, &of.messages, true))?;
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
        self.of(conversation).confined(conversation, |compiled, of| Spans::new(compiled, of).render())
    }
}

/// The tokens that templates know by name.
fn tokens(dir: &Path) -> Result<Vec<(String, String)>> {
    let token = |(name, value): (String, Value)| {
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?.to_owned();
        name.ends_with("_token").then_some((name, text))
    };
    Ok(settings(dir)?.into_iter().filter_map(token).collect())
}

#[cfg(test)]
mod tests;
