//! Shows problems with excerpts of the texts in which they stand.

use std::fmt;
use std::ops::Range;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource};
use oarlock_config::settings::location::{Location, ValueSource};
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::secret::masked;
use oarlock_engine::report::terminal::is_obeyed;

/// The most problems that are shown one by one.
const MOST_SHOWN: usize = 50;
/// The most bytes of a line in an excerpt. Beyond some thousand columns no reader finds the label.
const MOST_LINE: usize = 1000;
/// The most characters of a message; one that quotes what was written may be long.
const MOST_MESSAGE: usize = 1000;

/// All problems with excerpts of their texts, as a terminal shows them. `color` also switches to the characters that
/// only terminals draw well.
pub fn render(problems: &Problems, color: bool, width: usize) -> String {
    let theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let handler = GraphicalReportHandler::new_themed(theme).with_links(false).with_width(width.max(40));
    let mut out = String::new();
    for problem in problems.iter().take(MOST_SHOWN) {
        if handler.render_report(&mut out, &Excerpt::of(problem)).is_err() {
            out.push_str(&visible(&masked(&problem.line()), MOST_MESSAGE));
            out.push('\n');
        }
    }
    if problems.len() > MOST_SHOWN {
        out.push_str(&format!("and {} more problems\n", problems.len() - MOST_SHOWN));
    }
    out
}

/// A problem with the text that is shown of its location.
#[derive(Debug)]
struct Excerpt<'p> {
    problem: &'p Problem,
    message: String,
    help: Option<String>,
    /// None where the problem has no location, or one in a line that is too long to be shown.
    source: Option<NamedSource<String>>,
    /// The bytes of the text that are shown: all of a file, of a long command what is near the labels.
    shown: Range<usize>,
}

impl<'p> Excerpt<'p> {
    fn of(problem: &'p Problem) -> Excerpt<'p> {
        let shown = shown(problem);
        let mut help = problem.advice().map(|help| visible(&masked(help), MOST_MESSAGE));
        let mut source = None;
        if let Some(location) = problem.location() {
            let text = &location.source.text;
            let near = |(label, _): &(Location, String)| lines_around(text, &label.bytes);
            if problem.labels().iter().map(near).any(|lines| lines.lines().any(|line| line.len() > MOST_LINE))
            {
                let place = visible(&format!("it is at {location}"), MOST_MESSAGE);
                help = Some(help.map_or(place.clone(), |help| format!("{place}\n{help}")));
            } else {
                let [before, behind] =
                    [shown.start > 0, shown.end < text.len()].map(|cut| if cut { "…" } else { "" });
                let hidden = location.source.masked();
                let text = visible(hidden.get(shown.clone()).unwrap_or_default(), usize::MAX);
                source = Some(NamedSource::new(
                    visible(&location.source.name, MOST_MESSAGE),
                    format!("{before}{text}{behind}"),
                ));
            }
        }
        Excerpt {
            problem,
            message: visible(&masked(&problem.to_string()), MOST_MESSAGE),
            help,
            source,
            shown,
        }
    }
}

/// The lines that an excerpt shows of a label: its own, and those before and behind.
fn lines_around<'t>(text: &'t str, bytes: &Range<usize>) -> &'t str {
    let line_start = |at: usize| text.get(..at).and_then(|before| before.rfind('\n')).unwrap_or(0);
    let line_end = |at: usize| {
        let behind = text.get(at..).and_then(|behind| behind.find('\n'));
        behind.map_or(text.len(), |n| at + n)
    };
    let next = (line_end(bytes.end) + 1).min(text.len());
    text.get(line_start(line_start(bytes.start))..line_end(next)).unwrap_or_default()
}

/// The first `most` characters of a text, with a question mark for each byte of a character that a terminal would obey.
pub fn visible(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for (n, c) in text.chars().enumerate() {
        // The first half of the end of a line, as Windows writes it, is obeyed as that.
        let ends_line = c == '\r' && text[out.len()..].starts_with("\r\n");
        match is_obeyed(c) && !ends_line {
            _ if n == most => return out + "…",
            true => out.extend(std::iter::repeat_n('?', c.len_utf8())),
            false => out.push(c),
        }
    }
    out
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
        f.write_str(&self.message)
    }
}

impl std::error::Error for Excerpt<'_> {}

impl Diagnostic for Excerpt<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.source.as_ref().map(|source| source as &dyn miette::SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.source.as_ref()?;
        Some(Box::new(self.problem.labels().iter().map(|(location, label)| {
            let label = (!label.is_empty()).then(|| visible(&masked(label), MOST_MESSAGE));
            let cut = if self.shown.start > 0 { '…'.len_utf8() } else { 0 };
            LabeledSpan::new(label, location.bytes.start - self.shown.start + cut, location.bytes.len())
        })))
    }
}
