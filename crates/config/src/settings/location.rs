//! Where a setting was written: a text, a location in it, and the origin that every resolved value carries.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::secret::{masked, masked_lines, masked_words};

/// What kind of text a [`SourceText`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// A configuration file.
    File,
    /// The arguments of the command, joined by blanks.
    Arguments,
    /// One environment variable, as `NAME=value`.
    Environment,
    /// What a script of another program says where nobody says anything: it yields to every other source.
    Defaults,
}

/// A text in which settings are written.
#[derive(Debug)]
pub struct SourceText {
    /// What kind of text this is.
    pub read_from: ValueSource,
    /// The name that messages use: the path of a file, `command line` or `environment`.
    pub name: String,
    /// The whole text.
    pub text: String,
    /// The bytes of each word of arguments; nothing for other texts.
    pub words: Vec<Range<usize>>,
}

impl SourceText {
    /// The text of a file, without a byte order mark.
    pub fn file(name: &str, text: String) -> Arc<SourceText> {
        let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
        Arc::new(SourceText { read_from: ValueSource::File, name: name.to_owned(), text, words: Vec::new() })
    }

    /// The text with its secrets hidden, each byte in its place.
    pub fn masked(&self) -> String {
        match self.read_from {
            ValueSource::File => masked_lines(&self.text),
            ValueSource::Environment => masked_words([self.text.as_str()]).concat(),
            _ => {
                let words = self.words.iter().map(|word| self.text.get(word.clone()).unwrap_or_default());
                let hidden = masked_words(words).join(" ");
                // A text that is not of words is a single value.
                if hidden.len() == self.text.len() { hidden } else { masked(&self.text) }
            }
        }
    }
}

/// A stretch of a [`SourceText`].
#[derive(Clone, Debug)]
pub struct Location {
    /// The text.
    pub source: Arc<SourceText>,
    /// The bytes of it.
    pub bytes: Range<usize>,
}

impl Location {
    /// The value of an environment variable.
    pub fn of_variable(name: &str, value: &str) -> Location {
        let text = format!("{name}={value}");
        let bytes = name.len() + 1..text.len();
        let source = SourceText {
            read_from: ValueSource::Environment,
            name: "environment".to_owned(),
            text,
            words: Vec::new(),
        };
        Location { source: Arc::new(source), bytes }
    }

    /// The words at this location.
    pub fn text(&self) -> &str {
        self.source.text.get(self.bytes.clone()).unwrap_or_default()
    }

    /// The line, counted from 1.
    pub fn line(&self) -> usize {
        self.before().matches('\n').count() + 1
    }

    /// The whole line in which the location begins.
    pub fn line_text(&self) -> &str {
        self.source.text.lines().nth(self.line() - 1).unwrap_or_default()
    }

    /// The column in characters, counted from 1.
    pub fn column(&self) -> usize {
        self.before().rsplit('\n').next().unwrap_or_default().chars().count() + 1
    }

    fn before(&self) -> &str {
        self.source.text.get(..self.bytes.start).unwrap_or_default()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source.read_from {
            ValueSource::File => write!(f, "{}:{}:{}", self.source.name, self.line(), self.column()),
            ValueSource::Arguments => f.write_str("the command line"),
            ValueSource::Environment => {
                f.write_str(self.source.text.split('=').next().unwrap_or("the environment"))
            }
            ValueSource::Defaults => write!(f, "the defaults of {}", self.source.name),
        }
    }
}

/// Where a resolved value comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Somebody wrote it.
    Written(Location),
    /// It follows from another setting, by the rule named here.
    Rule(&'static str),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Written(location) => match location.source.read_from {
                ValueSource::File => write!(f, "{}:{}", location.source.name, location.line()),
                ValueSource::Arguments => f.write_str("argument"),
                ValueSource::Environment => write!(f, "{location}"),
                ValueSource::Defaults => write!(f, "default of {}", location.source.name),
            },
            Origin::Rule(rule) => f.write_str(rule),
            Origin::Default => f.write_str("default"),
        }
    }
}
