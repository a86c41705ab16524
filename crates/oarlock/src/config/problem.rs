//! What is wrong with a configuration: all problems together, each with its place, its cause and what to do.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource};

use super::source::{Place, SourceKind};

/// One thing that is wrong.
#[derive(Debug)]
pub struct Problem(Box<Parts>);

#[derive(Debug)]
struct Parts {
    message: String,
    help: Option<String>,
    /// The first is the place of the problem; the others, of the same text, explain it.
    labels: Vec<(Place, String)>,
    source: Option<NamedSource<String>>,
    /// The bytes of the text that are shown: all of a file, of a long command what is near the labels.
    shown: Range<usize>,
}

impl Problem {
    /// A problem that no text shows, such as a key that is missing everywhere.
    pub fn new(message: impl Into<String>) -> Self {
        Problem(Box::new(Parts {
            message: message.into(),
            help: None,
            labels: Vec::new(),
            source: None,
            shown: 0..0,
        }))
    }

    /// Adds a place and a word on it. A place in another text than the first is named in the help instead,
    /// because an excerpt shows one text.
    #[must_use]
    pub fn at(mut self, place: &Place, label: impl Into<String>) -> Self {
        match self.0.labels.first() {
            Some((first, _)) if !Arc::ptr_eq(&first.source, &place.source) => {
                let label = label.into();
                let line = place.line_text().trim();
                self.help(format!("{place}: {}", if label.is_empty() { line } else { &label }))
            }
            _ => {
                self.0.labels.push((place.clone(), label.into()));
                self.0.shown = self.window();
                let text = place.source.text.get(self.0.shown.clone()).unwrap_or_default();
                let [before, behind] = [self.0.shown.start > 0, self.0.shown.end < place.source.text.len()]
                    .map(|cut| if cut { "…" } else { "" });
                self.0.source = Some(NamedSource::new(&place.source.name, format!("{before}{text}{behind}")));
                self
            }
        }
    }

    /// What of the text of the labels is to be shown.
    fn window(&self) -> Range<usize> {
        /// The bytes of a command line that need no cutting, and those beside a label that stay.
        const SHORT: usize = 100;
        const BESIDE: usize = 40;
        let places = || self.0.labels.iter().map(|(place, _)| place);
        let Some(source) = places().next().map(|place| &place.source) else { return 0..0 };
        let text = source.text.as_str();
        if source.kind != SourceKind::Arguments || text.len() <= SHORT {
            return 0..text.len();
        }
        let first = places().map(|place| place.bytes.start).min().unwrap_or(0).saturating_sub(BESIDE);
        let last = places().map(|place| place.bytes.end).max().unwrap_or(0).saturating_add(BESIDE);
        // Whole words.
        let begin = if first == 0 {
            0
        } else {
            (0..=first).rev().find(|&i| text.as_bytes().get(i) == Some(&b' ')).map_or(0, |i| i + 1)
        };
        let end = (last..text.len()).find(|&i| text.as_bytes().get(i) == Some(&b' ')).unwrap_or(text.len());
        begin..end
    }

    /// Adds what the reader can do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        let help = help.into();
        self.0.help = Some(match self.0.help.take() {
            Some(before) => format!("{before}\n{help}"),
            None => help,
        });
        self
    }

    /// The place of the problem, where it has one.
    pub fn place(&self) -> Option<&Place> {
        self.0.labels.first().map(|(place, _)| place)
    }

    /// One line: place, message and help, for tests, logs and outputs that take no excerpt.
    pub fn line(&self) -> String {
        let place = self.place().map(|place| format!("{place}: ")).unwrap_or_default();
        let help =
            self.0.help.as_ref().map(|help| format!(" ({})", help.replace('\n', "; "))).unwrap_or_default();
        format!("{place}{}{help}", self.0.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Problem {}

impl Diagnostic for Problem {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.0.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.0.source.as_ref().map(|source| source as &dyn miette::SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        if self.0.labels.is_empty() {
            return None;
        }
        Some(Box::new(self.0.labels.iter().map(|(place, label)| {
            let label = (!label.is_empty()).then(|| label.clone());
            let cut = if self.0.shown.start > 0 { '…'.len_utf8() } else { 0 };
            LabeledSpan::new(label, place.bytes.start - self.0.shown.start + cut, place.bytes.len())
        })))
    }
}

/// Everything that is wrong, in the order of the texts. As an error its message is all of it, one line each.
#[derive(Debug, Default)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Adds one.
    pub fn push(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// Adds those of another step.
    pub fn append(&mut self, mut other: Problems) {
        self.0.append(&mut other.0);
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The problems.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// `value` if nothing is wrong, else the problems.
    ///
    /// # Errors
    /// The problems themselves.
    pub fn into_result<T>(self, value: impl FnOnce() -> T) -> Result<T, Problems> {
        if self.0.is_empty() { Ok(value()) } else { Err(self) }
    }

    /// All problems with excerpts of their texts, as a terminal shows them. `color` also switches to the
    /// characters that only terminals draw well.
    pub fn render(&self, color: bool, width: usize) -> String {
        let theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let handler = GraphicalReportHandler::new_themed(theme).with_links(false).with_width(width.max(40));
        let mut out = String::new();
        for problem in &self.0 {
            if handler.render_report(&mut out, problem).is_err() {
                out.push_str(&problem.line());
                out.push('\n');
            }
        }
        out
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { "\n" }, problem.line())?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl FromIterator<Problem> for Problems {
    fn from_iter<T: IntoIterator<Item = Problem>>(problems: T) -> Self {
        Problems(problems.into_iter().collect())
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Problems(vec![problem])
    }
}
