//! Arguments inside of a setting: those of a learning-rate schedule or of an optimizer.

use super::keys::Range;
use super::node::Entry;
use super::problem::{Problem, Problems};
use super::resolve::{Setting, at};
use super::value;

/// The arguments of something that a setting names: each is asked for by name, and whatever nobody asked for is
/// unknown.
pub struct Kwargs<'a> {
    /// What they belong to, as it was written.
    of: &'a str,
    /// The settings of the arguments and of the name, where a problem with the whole stands.
    settings: [&'a Setting; 2],
    entries: &'a [Entry],
    known: Vec<&'static str>,
    problems: &'a mut Problems,
}

impl<'a> Kwargs<'a> {
    /// The arguments `entries` of `of`.
    pub fn new(
        of: &'a str,
        settings: [&'a Setting; 2],
        entries: &'a [Entry],
        problems: &'a mut Problems,
    ) -> Kwargs<'a> {
        Kwargs { of, settings, entries, known: Vec::new(), problems }
    }

    /// The argument of this name as `parse` understands it; one that it does not understand is reported.
    fn parsed<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        self.known.push(name);
        let value = &self.entries.iter().find(|entry| entry.key == name && !entry.value.is_null())?.value;
        let parsed = parse(value.word().unwrap_or_default());
        if parsed.is_none() {
            let message = format!("`{name}` takes {expected}, not {}", value.describe());
            self.problems.push(Problem::new(message).at(&value.location, ""));
        }
        parsed
    }

    /// What they belong to.
    pub fn of(&self) -> &'a str {
        self.of
    }

    /// Something that is wrong with the whole.
    pub fn reject(&mut self, message: String) {
        self.problems.push(at(Problem::new(message), &self.settings));
    }

    /// A number in a range.
    pub fn number(&mut self, name: &'static str, range: Range) -> Option<f64> {
        self.parsed(name, range.describe(), |text| value::float(text).filter(|x| range.contains(*x)))
    }

    /// A whole number.
    pub fn count(&mut self, name: &'static str) -> Option<u64> {
        self.parsed(name, "a whole number, at least 0", |text| whole(text, 0.0))
    }

    /// A whole number that is not 0.
    pub fn size(&mut self, name: &'static str) -> Option<u64> {
        self.parsed(name, "a whole number, at least 1", |text| whole(text, 1.0))
    }

    /// One of some words, each with its meaning.
    pub fn choice<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Option<T> {
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        self.parsed(name, &format!("one of {}", names.join(", ")), |text| {
            words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning)
        })
    }

    /// Whether the argument is written and is not null.
    pub fn is_said(&mut self, name: &'static str) -> bool {
        self.known.push(name);
        self.entries.iter().any(|entry| entry.key == name && !entry.value.is_null())
    }

    /// True or false.
    pub fn flag(&mut self, name: &'static str) -> Option<bool> {
        self.parsed(name, "true or false", value::boolean)
    }

    /// Reports the arguments that were not read.
    pub fn finish(self) {
        let known = &self.known;
        for entry in self.entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let message = format!("`{}` takes no argument `{}`", self.of, entry.key);
            let otherwise = match known.as_slice() {
                [] => "it takes none".to_owned(),
                known => format!("it takes {}", known.join(", ")),
            };
            let problem = Problem::new(message).at(&entry.location, "");
            self.problems.push(problem.did_you_mean(&entry.key, known.iter().copied(), otherwise));
        }
    }
}

fn whole(text: &str, least: f64) -> Option<u64> {
    let fits = |x: &f64| *x >= least && x.fract() == 0.0 && *x < 9e15;
    value::float(text).filter(fits).map(|x| x as u64)
}
