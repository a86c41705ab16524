//! Chat templates: the Jinja text of a tokenizer folder that turns a history of messages into a prompt.

use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value as Jinja};
use minijinja::{Environment, ErrorKind, context};
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// "system", "user" or "assistant".
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_string(), content: content.into() }
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and the others, by name.
    tokens: Vec<(String, String)>,
    path: PathBuf,
}

const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Reads `chat_template.jinja`, or else `chat_template` of `tokenizer_config.json`.
    ///
    /// # Errors
    /// A folder without a template, or one that is broken.
    pub fn read(dir: &Path) -> Result<ChatTemplate> {
        let config_path = dir.join("tokenizer_config.json");
        let config: Map<String, Value> = match std::fs::read(&config_path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|e| Error::bad_file(&config_path, e.to_string()))?
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Map::new(),
            Err(e) => return Err(Error::io("read", &config_path)(e)),
        };
        let file = dir.join("chat_template.jinja");
        let (source, path) = match std::fs::read_to_string(&file) {
            Ok(source) => (source, file),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => match written_in(&config) {
                Some(source) => (source.to_string(), config_path),
                None => {
                    return Err(Error::bad_file(
                        dir,
                        "has no chat template (chat_template in tokenizer_config.json, or chat_template.jinja); a model \
                         that was only pretrained continues a text: use `oarlock generate`",
                    ));
                }
            },
            Err(e) => return Err(Error::io("read", &file)(e)),
        };
        let tokens = config.iter().filter_map(|(name, value)| {
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            name.ends_with("_token").then(|| (name.clone(), text.to_string()))
        });
        ChatTemplate::compile(source, tokens.collect(), path)
    }

    fn compile(source: String, tokens: Vec<(String, String)>, path: PathBuf) -> Result<ChatTemplate> {
        let broken =
            |e: minijinja::Error| Error::bad_file(&path, format!("the chat template is broken: {e}"));
        let mut environment = Environment::new();
        environment.set_syntax(whitespace().map_err(broken)?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<Jinja, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_template_owned(NAME, source).map_err(broken)?;
        Ok(ChatTemplate { environment, tokens, path })
    }

    /// The prompt that asks for the assistant's next message.
    ///
    /// # Errors
    /// What the template reports, such as roles in an order that it does not know.
    pub fn render_prompt(&self, messages: &[Message]) -> Result<String> {
        let tokens = Jinja::from_pairs(self.tokens.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        let turn =
            |m: &Message| Jinja::from_pairs([("role", m.role.as_str()), ("content", m.content.as_str())]);
        let messages: Jinja = messages.iter().map(turn).collect();
        let render = || {
            let template = self.environment.get_template(NAME)?;
            template.render(context! { messages => messages, add_generation_prompt => true, ..tokens })
        };
        render().map_err(|e| Error::bad_file(&self.path, format!("the chat template fails: {e}")))
    }
}

/// Line ends after blocks and blanks before them do not count.
fn whitespace() -> std::result::Result<SyntaxConfig, minijinja::Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
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

/// As Python's `json.dumps`: no escapes for HTML, a space after commas and colons.
fn to_json(value: &Jinja, kwargs: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let bad = |e: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut out = Vec::new();
    match kwargs.get::<Option<usize>>("indent")? {
        Some(n) => {
            let indent = " ".repeat(n);
            let mut writer =
                Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(indent.as_bytes()));
            value.serialize(&mut writer).map_err(bad)?;
        }
        None => value
            .serialize(&mut Serializer::with_formatter(&mut out, Spaced(CompactFormatter)))
            .map_err(bad)?,
    }
    String::from_utf8(out).map_err(|e| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string()))
}

struct Spaced(CompactFormatter);

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { self.0.begin_array_value(out, first) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { self.0.begin_object_key(out, first) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}
