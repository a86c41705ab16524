//! What is wrong with a configuration: all problems together, each with its location, its cause and what to do.

use std::fmt;
use std::sync::Arc;

use super::location::Location;
use crate::lookalikes::advice;
use crate::nearest::nearest_of;

/// One thing that is wrong.
#[derive(Debug)]
pub struct Problem(Box<Parts>);

#[derive(Debug)]
struct Parts {
    message: String,
    help: Option<String>,
    /// The first is the location of the problem; the others, of the same text, explain it.
    labels: Vec<(Location, String)>,
}

impl Problem {
    /// A problem that no text shows, such as a key that is missing everywhere.
    pub fn new(message: impl Into<String>) -> Self {
        Problem(Box::new(Parts { message: message.into(), help: None, labels: Vec::new() }))
    }

    /// Adds a location and a word on it. A location in another text than the first is named in the help instead,
    /// because an excerpt shows one text. What is written at the first with characters that look like others is told as it
    /// was meant.
    #[must_use]
    pub fn at(self, location: &Location, label: impl Into<String>) -> Self {
        let slip = advice(location.text()).filter(|_| self.0.labels.is_empty());
        let problem = self.labeled(location, label);
        match slip {
            Some(slip) => problem.help(slip),
            None => problem,
        }
    }

    /// The same without a look at what is written there.
    #[must_use]
    pub fn labeled(mut self, location: &Location, label: impl Into<String>) -> Self {
        match self.0.labels.first() {
            Some((first, _)) if !Arc::ptr_eq(&first.source, &location.source) => {
                let label = label.into();
                let line = location.line_text().trim();
                self.help(format!("{location}: {}", if label.is_empty() { line } else { &label }))
            }
            _ => {
                self.0.labels.push((location.clone(), label.into()));
                self
            }
        }
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

    /// Adds the nearest of the names that exist, or other help where none is near.
    #[must_use]
    pub fn did_you_mean<'n>(
        self,
        name: &str,
        names: impl IntoIterator<Item = &'n str>,
        otherwise: impl Into<String>,
    ) -> Self {
        match nearest_of(name, names.into_iter()) {
            Some(near) => self.help(format!("did you mean `{near}`?")),
            None => self.help(otherwise),
        }
    }

    /// What the reader can do, a line for each thing.
    pub fn advice(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// The locations, all of one text, each with a word on it; the first is that of the problem.
    pub fn labels(&self) -> &[(Location, String)] {
        &self.0.labels
    }

    /// The location of the problem, where it has one.
    pub fn location(&self) -> Option<&Location> {
        self.0.labels.first().map(|(location, _)| location)
    }

    /// One line: location, message and help, for tests, logs and outputs that take no excerpt.
    pub fn line(&self) -> String {
        let location = self.location().map(|location| format!("{location}: ")).unwrap_or_default();
        let help =
            self.0.help.as_ref().map(|help| format!(" ({})", help.replace('\n', "; "))).unwrap_or_default();
        format!("{location}{}{help}", self.0.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Problem {}

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
