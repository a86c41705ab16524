//! Where a setting was written: a text, a place in it, and the origin that every resolved value carries.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// What kind of text a [`Source`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
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
pub struct Source {
    /// What kind of text this is.
    pub kind: SourceKind,
    /// The name that messages use: the path of a file, `command line` or `environment`.
    pub name: String,
    /// The whole text.
    pub text: String,
}

impl Source {
    /// The text of a file, without a byte order mark.
    pub fn file(name: &str, text: String) -> Arc<Source> {
        let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
        Arc::new(Source { kind: SourceKind::File, name: name.to_owned(), text })
    }
}

/// A stretch of a [`Source`].
#[derive(Clone, Debug)]
pub struct Place {
    /// The text.
    pub source: Arc<Source>,
    /// The bytes of it.
    pub bytes: Range<usize>,
}

impl Place {
    /// The value of an environment variable.
    pub fn of_variable(name: &str, value: &str) -> Place {
        let text = format!("{name}={value}");
        let bytes = name.len() + 1..text.len();
        let source = Source { kind: SourceKind::Environment, name: "environment".to_owned(), text };
        Place { source: Arc::new(source), bytes }
    }

    /// The words at this place.
    pub fn text(&self) -> &str {
        self.source.text.get(self.bytes.clone()).unwrap_or_default()
    }

    /// The line, counted from 1.
    pub fn line(&self) -> usize {
        self.before().matches('\n').count() + 1
    }

    /// The whole line in which the place begins.
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source.kind {
            SourceKind::File => write!(f, "{}:{}:{}", self.source.name, self.line(), self.column()),
            SourceKind::Arguments => f.write_str("the command line"),
            SourceKind::Environment => {
                f.write_str(self.source.text.split('=').next().unwrap_or("the environment"))
            }
            SourceKind::Defaults => write!(f, "the defaults of {}", self.source.name),
        }
    }
}

/// Where a resolved value comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Somebody wrote it.
    Written(Place),
    /// It follows from another setting, by the rule named here.
    Rule(&'static str),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Written(place) => match place.source.kind {
                SourceKind::File => write!(f, "{}:{}", place.source.name, place.line()),
                SourceKind::Arguments => f.write_str("argument"),
                SourceKind::Environment => write!(f, "{place}"),
                SourceKind::Defaults => write!(f, "default of {}", place.source.name),
            },
            Origin::Rule(rule) => f.write_str(rule),
            Origin::Default => f.write_str("default"),
        }
    }
}
