//! The Jinja engine as chat templates need it, and what a template may use.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use fancy_regex::{Captures, Regex};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as Jinja};
use minijinja::{Environment, ErrorKind, State, context};
use oarlock_comm::Exceeded;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

use super::super::confined::{self, Abandoned, Bounds};
use super::super::error::{Error, Result};
use super::super::example::{Conversation, Message};
use super::rendered::{BEGIN, END};

/// A template that can be rendered.
#[derive(Clone, Debug)]
pub(super) struct Compiled {
    environment: Environment<'static>,
    /// `bos_token` and the others, by name.
    tokens: Vec<(String, String)>,
    /// Whether the model is to think, where that is said.
    pub(super) thinks: Option<bool>,
    pub(super) path: PathBuf,
}

const NAME: &str = "chat_template";

/// The longest template. The parser calls itself for each operator of a chain.
pub(super) const MAX_SOURCE_BYTES: usize = 1 << 17;

/// What compiling may use. The stack grows with the template.
const COMPILING: Bounds = Bounds {
    bytes: 1 << 27,
    n_pieces: 1 << 21,
    total_bytes: 1 << 31,
    stack_bytes: 1 << 20,
    time: Duration::from_secs(5),
};

/// Stack for the parser, for each byte of a template.
const STACK_PER_BYTE: usize = 1 << 12;

/// The longest text that a template may render.
const MAX_BYTES: usize = 1 << 26;

/// The function that a `{% generation %}` block becomes a call of.
const GENERATION: &str = "generation_block";

impl Compiled {
    pub(super) fn new(source: &str, tokens: Vec<(String, String)>, path: PathBuf) -> Result<Compiled> {
        let refuse = |cause: String| Error::Template { path: path.clone(), cause };
        let text = with_calls(source);
        if text.len() > MAX_SOURCE_BYTES {
            let found = text.len();
            return Err(refuse(format!(
                "the chat template has {found} bytes; supported are at most {MAX_SOURCE_BYTES}"
            )));
        }
        let stack_bytes = COMPILING.stack_bytes + text.len() * STACK_PER_BYTE;
        let bounds = Bounds { stack_bytes, ..COMPILING };
        let compiled = confined::run(bounds, || environment(text)).map_err(|given_up| match given_up {
            Abandoned::NoThread(error) => refuse(format!("cannot parse the chat template: {error}")),
            Abandoned::Panicked => refuse("the chat template is broken: its values cannot be computed".into()),
            Abandoned::Exceeded(_) | Abandoned::TooSlow => Error::EndlessTemplate {
                path: path.clone(),
                cause: "the chat template takes too much memory or time before it renders anything; look for large \
                        constants in it"
                    .into(),
            },
        })?;
        let environment = compiled.map_err(|e| refuse(format!("the chat template is broken: {e}")))?;
        Ok(Compiled { environment, tokens, thinks: None, path })
    }

    /// What `body` returns, which renders the conversation any number of times.
    pub(super) fn confined<T: Send + 'static>(
        &self,
        conversation: &Conversation,
        body: impl FnOnce(&Compiled, &Conversation) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let bounds = bounds(conversation);
        // A thread that is given up keeps what it has locked, so it gets an environment of its own.
        let (mut own, of) = (self.clone(), conversation.clone());
        own.environment.set_fuel(Some(max_steps(of.messages.len())));
        let path = &self.path;
        let endless = |cause: String| Error::EndlessTemplate { path: path.clone(), cause };
        confined::run(bounds, move || body(&own, &of)).unwrap_or_else(|given_up| {
            Err(match given_up {
                Abandoned::Exceeded(Exceeded::Memory) => endless(format!(
                    "the chat template takes more than {} MiB to render a conversation; look for a text or a list that grows \
                     without end in it",
                    bounds.bytes >> 20
                )),
                Abandoned::Exceeded(Exceeded::Work) => endless(
                    "the chat template makes large texts without end to render a conversation; look for a loop around them"
                        .into(),
                ),
                Abandoned::Exceeded(Exceeded::Stack) => endless(
                    "the chat template nests values without end; look for a value that holds itself".into(),
                ),
                Abandoned::TooSlow => endless(format!(
                    "the chat template takes more than {:.1} s to render a conversation; look for a loop without end in it",
                    bounds.time.as_secs_f64()
                )),
                Abandoned::Panicked => Error::Template {
                    path: path.clone(),
                    cause: "the chat template fails: its values cannot be computed".into(),
                },
                Abandoned::NoThread(error) => {
                    Error::Template { path: path.clone(), cause: format!("cannot render it: {error}") }
                }
            })
        })
    }

    /// The text of these messages, with the system message and the functions of a conversation.
    pub(super) fn text(&self, of: &Conversation, messages: &[Message], prompt: bool) -> Result<String> {
        let max_steps = self.environment.fuel().unwrap_or_default();
        let tokens = self.tokens.iter().map(|(name, text)| (name.as_str(), Jinja::from(text.as_str())));
        // The second name is that of MiniMind.
        let names = ["enable_thinking", "open_thinking"];
        let thinks = self.thinks.into_iter().flat_map(|on| names.map(|name| (name, Jinja::from(on))));
        let known = Jinja::from_pairs(tokens.chain(thinks));
        let system = of.system.as_ref().map(|text| Message::new("system", text.as_str()));
        let messages: Jinja = system.iter().chain(messages).map(turn).collect();
        // Some templates ask whether there is a list of functions, and not whether there is any in it.
        let tools = of.tools.as_ref().filter(|tools| **tools != Value::Array(Vec::new()));
        let tools = tools.map(|tools| Jinja::from(Serde(tools)));
        let mut text = BoundedText(Vec::new());
        let render = || {
            let template = self.environment.get_template(NAME)?;
            let context = context! { messages, tools, add_generation_prompt => prompt, ..known };
            template.render_captured_to(context, &mut text).map(drop)
        };
        let endless = |cause: String| Error::EndlessTemplate { path: self.path.clone(), cause };
        render().map_err(|e| match e.kind() {
            ErrorKind::OutOfFuel => endless(format!(
                "the chat template takes more than {max_steps} steps to render a conversation; look for a loop without end \
                 in it"
            )),
            ErrorKind::WriteFailure => endless(format!(
                "the chat template renders a text of more than {} MiB; look for a loop that writes without end in it",
                MAX_BYTES >> 20
            )),
            _ => self.error(format!("the chat template fails: {e}")),
        })?;
        String::from_utf8(text.0).map_err(|e| self.error(format!("the chat template fails: {e}")))
    }

    /// An error of this template.
    pub(super) fn error(&self, cause: impl Into<String>) -> Error {
        Error::Template { path: self.path.clone(), cause: cause.into() }
    }
}

fn environment(text: String) -> std::result::Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(whitespace()?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function(GENERATION, marked);
    environment.add_function(
        "raise_exception",
        |message: String| -> std::result::Result<Jinja, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    environment.add_template_owned(NAME, text)?;
    Ok(environment)
}

/// The most steps that a template may take to render these messages; a message takes some hundred.
fn max_steps(n_messages: usize) -> u64 {
    5_000_000 + 20_000 * n_messages as u64
}

/// What a template may use for a conversation, all its renderings together. Templates copy texts and messages a few times.
fn bounds(conversation: &Conversation) -> Bounds {
    let mut size = Size::default();
    conversation.system.iter().for_each(|text| size.add_text(text));
    conversation.tools.iter().for_each(|tools| size.add(tools));
    for message in &conversation.messages {
        size.add_text(&message.content);
        message.extra.values().for_each(|value| size.add(value));
    }
    let (bytes, n_values) = (size.bytes as u64, size.n_values as u64);
    let n_pieces = 100_000 + 64 * n_values;
    Bounds {
        bytes: (1 << 26) + 32 * bytes + 4096 * n_values,
        n_pieces,
        total_bytes: (1 << 31) + 4096 * bytes + (n_values << 20),
        stack_bytes: usize::try_from(n_pieces * STACK_PER_PIECE).unwrap_or(usize::MAX),
        time: Duration::from_millis(1500)
            + Duration::from_millis(5) * u32::try_from(n_values).unwrap_or(u32::MAX),
    }
}

/// Stack to release what is nested: a level takes two pieces of memory.
const STACK_PER_PIECE: u64 = 1 << 9;

/// How large a conversation is.
#[derive(Default)]
struct Size {
    bytes: usize,
    n_values: usize,
}

impl Size {
    fn add_text(&mut self, text: &str) {
        self.bytes += text.len();
        self.n_values += 1;
    }

    fn add(&mut self, value: &Value) {
        self.n_values += 1;
        match value {
            Value::String(text) => self.bytes += text.len(),
            Value::Array(values) => values.iter().for_each(|value| self.add(value)),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                self.bytes += name.len();
                self.add(value);
            }),
            _ => {}
        }
    }
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

/// What a `{% generation %}` block renders, between marks.
fn marked(state: &mut State, kwargs: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let block: Jinja = kwargs.get("caller")?;
    Ok(format!("{BEGIN}{}{END}", block.call(state, &[])?))
}

/// Line ends after blocks and blanks before them do not count.
fn whitespace() -> std::result::Result<SyntaxConfig, minijinja::Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
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

pub(in super::super) struct Spaced(pub(in super::super) CompactFormatter);

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
