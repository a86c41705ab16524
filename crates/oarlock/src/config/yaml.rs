//! A YAML or JSON text as a tree whose every node knows its place. Scalars stay text: what a scalar means is
//! decided by the key that it belongs to, so that `5e-4`, which YAML 1.1 takes for a word, is a number.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::problem::Problem;
use super::source::{Place, Source};

/// Deeper nesting than any configuration has; it bounds the recursion over a tree.
const MAX_DEPTH: usize = 32;

/// A node of the tree.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it holds.
    pub data: Data,
    /// Where it stands.
    pub place: Place,
}

/// The place of an equal key before this one.
fn repeated(seen: &mut BTreeMap<String, Place>, key: &Node) -> Option<Place> {
    match &key.data {
        Data::Scalar { text, .. } => seen.insert(text.clone(), key.place.clone()),
        _ => None,
    }
}

/// The content of a [`Node`].
#[derive(Clone, Debug)]
pub enum Data {
    /// A word, number or string. `plain` means that no quotes stood around it.
    Scalar {
        /// The text without quotes.
        text: String,
        /// Whether it stood without quotes.
        plain: bool,
    },
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of the text. Keys are not checked for duplicates here.
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// A scalar without quotes.
    pub fn scalar(text: impl Into<String>, place: Place) -> Self {
        Node { data: Data::Scalar { text: text.into(), plain: true }, place }
    }

    /// Whether this is YAML's null: nothing, `~` or `null`, without quotes.
    pub fn is_null(&self) -> bool {
        match &self.data {
            Data::Scalar { text, plain: true } => {
                matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }

    /// The node as YAML in one line.
    pub fn to_yaml(&self) -> String {
        match &self.data {
            Data::Scalar { text, plain: true } => text.clone(),
            Data::Scalar { text, plain: false } => serde_json::Value::from(text.as_str()).to_string(),
            Data::List(items) => {
                format!("[{}]", items.iter().map(Node::to_yaml).collect::<Vec<_>>().join(", "))
            }
            Data::Map(pairs) => {
                let pairs =
                    pairs.iter().map(|(key, value)| format!("{}: {}", key.to_yaml(), value.to_yaml()));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// The node in words, for messages.
    pub fn describe(&self) -> String {
        match &self.data {
            Data::Scalar { text, .. } if text.is_empty() => "nothing".to_owned(),
            Data::Scalar { text, .. } => format!("`{}`", shorten(text)),
            Data::List(_) => "a list".to_owned(),
            Data::Map(_) => "a mapping".to_owned(),
        }
    }
}

fn shorten(text: &str) -> Cow<'_, str> {
    const MAX: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    if line.len() == text.len() && line.chars().count() <= MAX {
        return Cow::Borrowed(text);
    }
    Cow::Owned(line.chars().take(MAX).chain("…".chars()).collect())
}

/// Reads a whole text.
///
/// # Errors
/// The first place at which the text is not YAML, or holds more than one document or an alias.
pub fn parse(source: &Arc<Source>) -> Result<Node, Problem> {
    parse_from(&source.text, source)
}

/// Reads a text that is a source's but for bytes that were blanked, such as comments of JSON.
///
/// # Errors
/// As [`parse`].
pub fn parse_from(text: &str, source: &Arc<Source>) -> Result<Node, Problem> {
    Reader::new(text, |bytes| Place { source: source.clone(), bytes }).document()
}

/// Reads a text that stands as a value inside another, such as JSON in quotes: every node has the place of the
/// value.
///
/// # Errors
/// As [`parse`].
pub fn parse_inside(text: &str, place: &Place) -> Result<Node, Problem> {
    Reader::new(text, |_| place.clone()).document()
}

/// Pulls events and builds the tree.
struct Reader<'t, P: Fn(std::ops::Range<usize>) -> Place> {
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    /// The byte at which each character starts: the parser counts characters.
    starts: Vec<usize>,
    end: usize,
    place: P,
}

impl<'t, P: Fn(std::ops::Range<usize>) -> Place> Reader<'t, P> {
    fn new(text: &'t str, place: P) -> Self {
        let starts = text.char_indices().map(|(at, _)| at).collect();
        Reader { parser: Parser::new_from_str(text), starts, end: text.len(), place }
    }

    fn byte(&self, character: usize) -> usize {
        self.starts.get(character).copied().unwrap_or(self.end)
    }

    fn at(&self, span: Span) -> Place {
        let start = self.byte(span.start.index());
        (self.place)(start..self.byte(span.end.index()).max(start))
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Problem> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.broken(&error)),
            None => {
                let end = self.end;
                Err(Problem::new("the text ends in the middle of a value")
                    .at(&(self.place)(end..end), "here"))
            }
        }
    }

    fn broken(&self, error: &ScanError) -> Problem {
        let at = self.byte(error.marker().index());
        Problem::new("this is not valid YAML").at(&(self.place)(at..at), error.info()).help(
            "a configuration is lines of `key: value`, or a JSON object; blanks, not tabs, before a key",
        )
    }

    fn document(&mut self) -> Result<Node, Problem> {
        loop {
            match self.next()? {
                (Event::Nothing | Event::StreamStart | Event::DocumentStart(_), _) => {}
                // An empty text is an empty mapping: whatever is missing is then reported by name.
                (Event::StreamEnd, span) => {
                    return Ok(Node { data: Data::Map(Vec::new()), place: self.at(span) });
                }
                (event, span) => {
                    let node = self.node(event, span, 0)?;
                    self.end_of_document()?;
                    return Ok(node);
                }
            }
        }
    }

    fn end_of_document(&mut self) -> Result<(), Problem> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentEnd | Event::Nothing, _) => {}
                (_, span) => {
                    return Err(Problem::new("a second YAML document begins here")
                        .at(&self.at(span), "second document")
                        .help("a configuration is one document; remove the line `---`"));
                }
            }
        }
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Problem> {
        let place = self.at(span);
        if depth > MAX_DEPTH {
            return Err(Problem::new(format!("nested deeper than {MAX_DEPTH} levels")).at(&place, "here"));
        }
        let data = match event {
            Event::Scalar(text, style, ..) => {
                Data::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (event, span) => items.push(self.node(event, span, depth + 1)?),
                    }
                }
                Data::List(items)
            }
            Event::MappingStart(..) => {
                let mut pairs = Vec::new();
                let mut seen = BTreeMap::new();
                loop {
                    match self.next()? {
                        (Event::MappingEnd, _) => break,
                        (event, span) => {
                            let key = self.node(event, span, depth + 1)?;
                            // At the top all duplicates are reported together, later; here one is enough.
                            if depth > 0
                                && let Some(first) = repeated(&mut seen, &key)
                            {
                                return Err(Problem::new(format!("{} is written twice", key.describe()))
                                    .at(&key.place, "again here")
                                    .at(&first, "first here")
                                    .help("remove one of them"));
                            }
                            let (event, span) = self.next()?;
                            pairs.push((key, self.node(event, span, depth + 1)?));
                        }
                    }
                }
                Data::Map(pairs)
            }
            Event::Alias(_) => {
                return Err(Problem::new("aliases (`*name`) are not supported")
                    .at(&place, "an alias")
                    .help("write the value itself"));
            }
            _ => return Err(Problem::new("expected a value").at(&place, "here")),
        };
        Ok(Node { data, place })
    }
}
