//! Shows problems with excerpts of the texts in which they stand.

use std::fmt;
use std::ops::Range;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource};
use oarlock::settings::location::ValueSource;
use oarlock::settings::problem::{Problem, Problems};

/// All problems with excerpts of their texts, as a terminal shows them. `color` also switches to the characters that
/// only terminals draw well.
pub fn render(problems: &Problems, color: bool, width: usize) -> String {
    let theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let handler = GraphicalReportHandler::new_themed(theme).with_links(false).with_width(width.max(40));
    let mut out = String::new();
    for problem in problems.iter() {
        if handler.render_report(&mut out, &Excerpt::of(problem)).is_err() {
            out.push_str(&problem.line());
            out.push('\n');
        }
    }
    out
}

/// A problem with the text that is shown of its location.
#[derive(Debug)]
struct Excerpt<'p> {
    problem: &'p Problem,
    source: Option<NamedSource<String>>,
    /// The bytes of the text that are shown: all of a file, of a long command what is near the labels.
    shown: Range<usize>,
}

impl<'p> Excerpt<'p> {
    fn of(problem: &'p Problem) -> Excerpt<'p> {
        let shown = shown(problem);
        let source = problem.location().map(|location| {
            let text = &location.source.text;
            let [before, behind] =
                [shown.start > 0, shown.end < text.len()].map(|cut| if cut { "…" } else { "" });
            let text = text.get(shown.clone()).unwrap_or_default();
            NamedSource::new(&location.source.name, format!("{before}{text}{behind}"))
        });
        Excerpt { problem, source, shown }
    }
}

/// The bytes of the text of a problem that are to be shown.
fn shown(problem: &Problem) -> Range<usize> {
    /// The bytes of a command line that need no cutting, and those beside a label that stay.
    const SHORT: usize = 100;
    const BESIDE: usize = 40;
    let locations = || problem.labels().iter().map(|(location, _)| location);
    let Some(source) = locations().next().map(|location| &location.source) else { return 0..0 };
    let text = source.text.as_str();
    if source.read_from != ValueSource::Arguments || text.len() <= SHORT {
        return 0..text.len();
    }
    let first = locations().map(|location| location.bytes.start).min().unwrap_or(0).saturating_sub(BESIDE);
    let last = locations().map(|location| location.bytes.end).max().unwrap_or(0).saturating_add(BESIDE);
    // Whole words.
    let begin = if first == 0 {
        0
    } else {
        (0..=first).rev().find(|&i| text.as_bytes().get(i) == Some(&b' ')).map_or(0, |i| i + 1)
    };
    let end = (last..text.len()).find(|&i| text.as_bytes().get(i) == Some(&b' ')).unwrap_or(text.len());
    begin..end
}

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem.fmt(f)
    }
}

impl std::error::Error for Excerpt<'_> {}

impl Diagnostic for Excerpt<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.problem.advice().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.source.as_ref().map(|source| source as &dyn miette::SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        if self.problem.labels().is_empty() {
            return None;
        }
        Some(Box::new(self.problem.labels().iter().map(|(location, label)| {
            let label = (!label.is_empty()).then(|| label.clone());
            let cut = if self.shown.start > 0 { '…'.len_utf8() } else { 0 };
            LabeledSpan::new(label, location.bytes.start - self.shown.start + cut, location.bytes.len())
        })))
    }
}
