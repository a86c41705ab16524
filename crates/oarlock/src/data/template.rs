//! Chat templates: the Jinja text of a tokenizer folder that turns a conversation into the text that a model sees.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use fancy_regex::{Captures, Regex};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as Jinja};
use minijinja::{Environment, ErrorKind, State, context};
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};
use serde_json::{Map, Value};

use super::error::{Error, Result};
use super::example::{Conversation, Message};

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// `bos_token` and the others, by name.
    tokens: Vec<(String, String)>,
    path: PathBuf,
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

const NAME: &str = "chat_template";

/// The longest template. The parser calls itself for each operator of a chain.
const MAX_SOURCE_BYTES: usize = 1 << 17;
/// Stack for the parser, for each byte of a template. What is not used takes no memory.
const STACK_PER_BYTE: usize = 1 << 12;
/// The most steps that a template may take to render a conversation; a message takes some hundred.
const MAX_STEPS: u64 = 50_000_000;
/// The longest text that a template may render.
const MAX_BYTES: usize = 1 << 26;

/// The function that a `{% generation %}` block becomes a call of.
const GENERATION: &str = "generation_block";
/// The filter around what a namespace keeps: the only texts that can grow from one turn of a loop to the next.
const KEPT: &str = "kept_text";

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
        let config: Map<String, Value> = match std::fs::read(&config_path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| broken(&config_path, e.to_string()))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Map::new(),
            Err(e) => return Err(Error::read(&config_path, e)),
        };
        let file = dir.join("chat_template.jinja");
        let (source, path) = match std::fs::read_to_string(&file) {
            Ok(source) => (source, file),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => match written_in(&config) {
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
        let config: Map<String, Value> = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| Error::Template { path: path.clone(), cause: e.to_string() })?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(Error::read(&path, e)),
        };
        Ok(written_in(&config).is_some())
    }

    fn compile(source: String, tokens: Vec<(String, String)>, path: PathBuf) -> Result<ChatTemplate> {
        let broken = |e: minijinja::Error| Error::Template {
            path: path.clone(),
            cause: format!("the chat template is broken: {e}"),
        };
        let mut environment = Environment::new();
        environment.set_syntax(whitespace().map_err(broken)?);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function(GENERATION, marked);
        environment.add_filter(KEPT, kept);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<Jinja, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        let refuse = |cause: String| Error::Template { path: path.clone(), cause };
        let text = with_bounds(&with_calls(&source));
        if text.len() > MAX_SOURCE_BYTES {
            let found = text.len();
            let cause =
                format!("the chat template has {found} bytes; supported are at most {MAX_SOURCE_BYTES}");
            return Err(refuse(cause));
        }
        let stack = (1 << 20) + text.len() * STACK_PER_BYTE;
        let parsed = with_stack(stack, || environment.add_template_owned(NAME, text));
        parsed.map_err(|e| refuse(format!("cannot parse the chat template: {e}")))?.map_err(broken)?;
        Ok(ChatTemplate { environment, source, tokens, path })
    }

    /// The Jinja text.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// An error of this template.
    pub(super) fn error(&self, cause: impl Into<String>) -> Error {
        Error::Template { path: self.path.clone(), cause: cause.into() }
    }

    /// The prompt that asks for the assistant's next message.
    ///
    /// # Errors
    /// What the template reports, such as roles in an order that it does not know.
    pub fn render_prompt(&self, conversation: &Conversation) -> Result<String> {
        let text = self.text(conversation, &conversation.messages, true)?;
        Ok(text.replace([BEGIN, END], ""))
    }

    /// The whole conversation, and which parts of it the assistant says.
    ///
    /// # Errors
    /// What the template reports, and a template that renders a message of the assistant so that its part cannot be
    /// told from the rest.
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered> {
        let messages = &conversation.messages;
        if messages.iter().any(|message| message.content.contains([BEGIN, END])) {
            return Err(self.error("a message holds the character U+FDD0 or U+FDD1, which no text has"));
        }
        let text = self.text(conversation, messages, false)?;
        if text.contains(BEGIN) {
            return self.blocks(&text);
        }
        let mut assistant: Vec<Range<usize>> = Vec::new();
        for i in (0..messages.len()).filter(|&i| messages[i].role == "assistant") {
            let span = self.span(conversation, i, &text);
            let behind_last =
                |span: &Range<usize>| assistant.last().is_none_or(|last| last.end <= span.start);
            assistant.push(span.filter(behind_last).ok_or_else(|| {
                self.error(format!(
                    "the chat template renders message {} so that what the assistant says cannot be told from the \
                     rest; write {{% generation %}} and {{% endgeneration %}} around it in the template",
                    i + 1
                ))
            })?);
        }
        Ok(Rendered { text, assistant })
    }

    fn text(&self, conversation: &Conversation, messages: &[Message], prompt: bool) -> Result<String> {
        let tokens = Jinja::from_pairs(self.tokens.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        let system = conversation.system.as_ref().map(|text| Message::new("system", text.as_str()));
        let messages: Jinja = system.iter().chain(messages).map(turn).collect();
        // Some templates ask whether there is a list of functions, and not whether there is any in it.
        let tools = conversation.tools.as_ref().filter(|tools| **tools != Value::Array(Vec::new()));
        let tools = tools.map(|tools| Jinja::from(Serde(tools)));
        let mut text = BoundedText(Vec::new());
        let render = || {
            let template = self.environment.get_template(NAME)?;
            let context = context! { messages, tools, add_generation_prompt => prompt, ..tokens };
            template.render_captured_to(context, &mut text).map(drop)
        };
        let endless = |cause: String| Error::EndlessTemplate { path: self.path.clone(), cause };
        render().map_err(|e| match e.kind() {
            ErrorKind::OutOfFuel => endless(format!(
                "the chat template takes more than {MAX_STEPS} steps to render a conversation; look for a loop without end \
                 in it"
            )),
            ErrorKind::WriteFailure => endless(format!(
                "the chat template renders a text of more than {} MiB; look for a loop that writes without end in it",
                MAX_BYTES >> 20
            )),
            _ if std::error::Error::source(&e).is_some_and(|source| source.is::<TooLong>()) => {
                endless(format!("the chat template keeps {TooLong} at line {}", e.line().unwrap_or(1)))
            }
            _ => self.error(format!("the chat template fails: {e}")),
        })?;
        String::from_utf8(text.0).map_err(|e| self.error(format!("the chat template fails: {e}")))
    }

    /// The text without the marks of its `{% generation %}` blocks, and where these were.
    fn blocks(&self, marked: &str) -> Result<Rendered> {
        let (mut text, mut assistant) = (String::with_capacity(marked.len()), Vec::new());
        let mut parts = marked.split(BEGIN);
        text.extend(parts.next());
        for part in parts {
            let block = part.split_once(END).filter(|(_, behind)| !behind.contains(END));
            let (said, behind) =
                block.ok_or_else(|| self.error("the generation blocks of the chat template are nested"))?;
            assistant.push(text.len()..text.len() + said.len());
            text.push_str(said);
            text.push_str(behind);
        }
        Ok(Rendered { text, assistant })
    }

    /// Where the message `i`, one of the assistant, stands in the text of the whole conversation.
    ///
    /// The conversation up to it is rendered with the generation prompt, which is what the model sees when it answers;
    /// and with the message, which ends the turn. Both are beginnings of the whole text, unless the template treats
    /// the last turn differently; then the message is replaced by a mark that shows where it stands.
    fn span(&self, conversation: &Conversation, i: usize, whole: &str) -> Option<Range<usize>> {
        let messages = &conversation.messages;
        let cut = |n: usize, prompt: bool| self.text(conversation, &messages[..n], prompt).ok();
        let begins = |text: &String| whole.starts_with(text.as_str());
        if let Some(until) = cut(i + 1, false).filter(begins)
            && let Some(before) = cut(i, false).filter(|text| until.starts_with(text.as_str()))
            && let Some(prompt) = cut(i, true)
        {
            // A prompt that begins an empty thought differs from a turn with a thought inside of what it asks for.
            let start = common_prefix(&prompt, &until);
            if start == prompt.len() || start > before.len() {
                return Some(start..until.len());
            }
        }
        // First without the calls and thoughts beside it: they are a part of what is said.
        let extras = [Map::new(), messages[i].extra.clone()];
        extras.into_iter().find_map(|extra| {
            let mut marked = messages.clone();
            marked[i] = Message { extra, ..Message::new("assistant", BEGIN) };
            self.span_by_mark(conversation, &marked, i, whole)
        })
    }

    /// As `span`, of messages in which a mark replaces the message `i`.
    fn span_by_mark(
        &self,
        of: &Conversation,
        marked: &[Message],
        i: usize,
        whole: &str,
    ) -> Option<Range<usize>> {
        let all = self.text(of, marked, false).ok()?;
        let until = self.text(of, &marked[..=i], false).ok()?;
        let (before, behind) = all.split_once(BEGIN)?;
        let (_, end_of_turn) = until.split_once(BEGIN)?;
        let fits = whole.starts_with(before)
            && whole.ends_with(behind)
            && behind.starts_with(end_of_turn)
            && before.len() + behind.len() <= whole.len();
        fits.then(|| before.len()..whole.len() - behind.len() + end_of_turn.len())
    }
}

/// What `body` returns, run on a thread with so many bytes of stack.
fn with_stack<T: Send>(bytes: usize, body: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(bytes).spawn_scoped(scope, body)?;
        thread.join().map_err(|_| io::Error::other("the thread has panicked"))
    })
}

/// A text that does not grow without end.
struct BoundedText(Vec<u8>);

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_BYTES - self.0.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How many bytes two texts have in common at their beginnings, in whole characters.
fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

/// A message as the template sees it.
fn turn(message: &Message) -> Jinja {
    let own = [("role", &message.role), ("content", &message.content)];
    let own = own.map(|(name, text)| (name, Jinja::from(text.as_str())));
    let extra = message.extra.iter().map(|(name, value)| (name.as_str(), Jinja::from(Serde(value))));
    Jinja::from_pairs(own.into_iter().chain(extra))
}

/// The template with each `{% generation %}` block as a call of a function, which marks what it renders.
fn with_calls(source: &str) -> String {
    let Ok(tags) = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}") else {
        return source.to_string();
    };
    let call = |tag: &Captures| match tag.get(2) {
        None => format!("{{%{} call {GENERATION}() {}%}}", &tag[1], &tag[3]),
        Some(_) => format!("{{%{} endcall {}%}}", &tag[1], &tag[3]),
    };
    tags.replace_all(source, call).into_owned()
}

/// The template with a filter around what is assigned to a namespace.
fn with_bounds(source: &str) -> String {
    let text = r#"'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*""#;
    let assigned =
        format!(r#"(?s)\{{%([-+]?)\s*set\s+(\w+\.\w+)\s*=((?:{text}|[^'"%]|%[^}}'"])*?)([-+]?)%\}}"#);
    match Regex::new(&assigned) {
        Ok(assigned) => {
            assigned.replace_all(source, format!("{{%$1 set $2 = ($3)|{KEPT} $4%}}")).into_owned()
        }
        Err(_) => source.to_string(),
    }
}

/// A text that doubles in every turn of a loop would take all memory in forty turns.
#[derive(Debug, thiserror::Error)]
#[error("a text of more than {} MiB; look for a text that is added to itself in a loop", MAX_BYTES >> 20)]
struct TooLong;

fn kept(value: Jinja) -> std::result::Result<Jinja, minijinja::Error> {
    match value.as_str().is_some_and(|text| text.len() > MAX_BYTES) {
        true => {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, TooLong.to_string()).with_source(TooLong))
        }
        false => Ok(value),
    }
}

/// What a `{% generation %}` block renders, between marks.
fn marked(state: &mut State, kwargs: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let block: Jinja = kwargs.get("caller")?;
    Ok(format!("{BEGIN}{}{END}", block.call(state, &[])?))
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

pub(super) struct Spaced(pub(super) CompactFormatter);

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { self.0.begin_array_value(out, first) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { self.0.begin_object_key(out, first) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests;
