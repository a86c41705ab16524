//! Reads YAML into the tree of [`oarlock_config::settings::node`].

use std::sync::Arc;

use oarlock_config::settings::fullwidth;
use oarlock_config::settings::json::{self, MAX_DEPTH};
use oarlock_config::settings::location::{Location, SourceText};
use oarlock_config::settings::node::{Entry, add_entry};
use oarlock_config::settings::problem::Problem;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::texts::read_file;

pub use oarlock_config::settings::node::{Data, Node};

/// Reads a whole text.
///
/// # Errors
/// The first location at which the text is not YAML, or holds more than one document or an alias.
fn parse(source: &Arc<SourceText>) -> Result<Node, Problem> {
    Reader::new(&source.text, |bytes| Location { source: source.clone(), bytes }).document()
}

/// The settings in a file, YAML or JSON; `what` names it in messages, as in "the DeepSpeed configuration".
///
/// # Errors
/// If the file cannot be read or its text is not a mapping.
pub fn file(path: &str, what: &str) -> Result<Vec<Entry>, Problem> {
    text(path, read_file(path, what)?, what)
}

/// The settings in a text. JSON may hold comments and trailing commas.
///
/// # Errors
/// If the text is not a mapping.
pub fn text(name: &str, text: String, what: &str) -> Result<Vec<Entry>, Problem> {
    match [".yaml", ".yml"].iter().any(|end| name.ends_with(end)) {
        true => entries(name, text, what),
        false => json::text(name, text, what),
    }
}

/// The settings in a text that is YAML whatever its name.
///
/// # Errors
/// If the text is not a mapping.
pub fn entries(name: &str, text: String, what: &str) -> Result<Vec<Entry>, Problem> {
    let source = SourceText::file(name, text);
    let read = || match parse(&source)? {
        root if root.is_null() => Ok(Vec::new()),
        root => root.into_entries(what),
    };
    read().map_err(|problem| fullwidth::in_yaml(&source).unwrap_or(problem))
}

/// Reads a text that stands as a value inside another, such as JSON in quotes: every node has the location of the
/// value.
///
/// # Errors
/// As `parse`.
pub fn parse_inside(text: &str, location: &Location) -> Result<Node, Problem> {
    Reader::new(text, |_| location.clone()).document()
}

/// Pulls events and builds the tree.
struct Reader<'t, P: Fn(std::ops::Range<usize>) -> Location> {
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    /// The byte at which each character starts: the parser counts characters.
    starts: Vec<usize>,
    end: usize,
    location: P,
}

impl<'t, P: Fn(std::ops::Range<usize>) -> Location> Reader<'t, P> {
    fn new(text: &'t str, location: P) -> Self {
        let starts = text.char_indices().map(|(at, _)| at).collect();
        Reader { parser: Parser::new_from_str(text), starts, end: text.len(), location }
    }

    fn byte(&self, character: usize) -> usize {
        self.starts.get(character).copied().unwrap_or(self.end)
    }

    fn at(&self, span: Span) -> Location {
        let start = self.byte(span.start.index());
        (self.location)(start..self.byte(span.end.index()).max(start))
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Problem> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.broken(&error)),
            None => {
                let end = self.end;
                Err(Problem::new("the text ends in the middle of a value")
                    .at(&(self.location)(end..end), "here"))
            }
        }
    }

    fn broken(&self, error: &ScanError) -> Problem {
        let at = self.byte(error.marker().index());
        Problem::new("this is not valid YAML").at(&(self.location)(at..at), error.info()).help(
            "a configuration is lines of `key: value`, or a JSON object; blanks, not tabs, before a key",
        )
    }

    fn document(&mut self) -> Result<Node, Problem> {
        loop {
            match self.next()? {
                (Event::Nothing | Event::StreamStart | Event::DocumentStart(_), _) => {}
                // An empty text is an empty mapping: whatever is missing is then reported by name.
                (Event::StreamEnd, span) => {
                    return Ok(Node { data: Data::Map(Vec::new()), location: self.at(span) });
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
        let location = self.at(span);
        if depth > MAX_DEPTH {
            return Err(Problem::new(format!("nested deeper than {MAX_DEPTH} levels")).at(&location, "here"));
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
                let mut entries = Vec::new();
                loop {
                    let key = match self.next()? {
                        (Event::MappingEnd, _) => break,
                        (event, span) => self.node(event, span, depth + 1)?,
                    };
                    let (event, span) = self.next()?;
                    let value = self.node(event, span, depth + 1)?;
                    add_entry(&mut entries, key, value, depth)?;
                }
                Data::Map(entries)
            }
            Event::Alias(_) => {
                return Err(Problem::new("aliases (`*name`) are not supported")
                    .at(&location, "an alias")
                    .help("write the value itself"));
            }
            _ => return Err(Problem::new("expected a value").at(&location, "here")),
        };
        Ok(Node { data, location })
    }
}
