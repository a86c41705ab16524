//! Arguments inside of a setting: those of a learning-rate schedule or of an optimizer.

use super::keys::Range;
use super::node::{Data, Node};
use super::problem::{Problem, Problems};
use super::resolve::Setting;
use super::resolve::at;
use super::value::{self, Field};
use crate::nearest::nearest_of;

/// The arguments of something that a setting names: each is asked for by name, and whatever nobody asked for is
/// unknown.
pub struct Kwargs<'a> {
    /// What they belong to, as it was written.
    of: &'a str,
    /// The settings of the arguments and of the name, where a problem with the whole stands.
    settings: [&'a Setting; 2],
    fields: &'a [Field],
    known: Vec<&'static str>,
    problems: &'a mut Problems,
}

impl<'a> Kwargs<'a> {
    /// The arguments `fields` of `of`.
    pub fn new(
        of: &'a str,
        settings: [&'a Setting; 2],
        fields: &'a [Field],
        problems: &'a mut Problems,
    ) -> Kwargs<'a> {
        Kwargs { of, settings, fields, known: Vec::new(), problems }
    }

    fn node(&mut self, name: &'static str) -> Option<(&Node, &str)> {
        self.known.push(name);
        let field = self.fields.iter().find(|field| field.name == name && !field.value.is_null())?;
        let node = &field.value;
        match &node.data {
            Data::Scalar { text, .. } => Some((node, text.trim())),
            _ => Some((node, "")),
        }
    }

    fn wrong(&mut self, name: &str, expected: &str) {
        if let Some(field) = self.fields.iter().find(|field| field.name == name) {
            let message = format!("`{name}` takes {expected}, not {}", field.value.describe());
            self.problems.push(Problem::new(message).at(&field.value.place, ""));
        }
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
        let (_, text) = self.node(name)?;
        let number = value::float(text).filter(|x| range.contains(*x));
        if number.is_none() {
            self.wrong(name, range.describe());
        }
        number
    }

    /// A whole number.
    pub fn count(&mut self, name: &'static str) -> Option<u64> {
        let (_, text) = self.node(name)?;
        let steps = value::float(text).filter(|x| *x >= 0.0 && x.fract() == 0.0 && *x < 9e15);
        if steps.is_none() {
            self.wrong(name, "a whole number, at least 0");
        }
        steps.map(|steps| steps as u64)
    }

    /// A whole number that is not 0.
    pub fn size(&mut self, name: &'static str) -> Option<u64> {
        let (_, text) = self.node(name)?;
        let size = value::float(text).filter(|x| *x >= 1.0 && x.fract() == 0.0 && *x < 9e15);
        if size.is_none() {
            self.wrong(name, "a whole number, at least 1");
        }
        size.map(|size| size as u64)
    }

    /// One of some words, each with its meaning.
    pub fn choice<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Option<T> {
        let (_, text) = self.node(name)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(name, &format!("one of {}", words.join(", ")));
        }
        found
    }

    /// True or false.
    pub fn flag(&mut self, name: &'static str) -> Option<bool> {
        let (_, text) = self.node(name)?;
        let flag = value::boolean(text);
        if flag.is_none() {
            self.wrong(name, "true or false");
        }
        flag
    }

    /// Reports what nobody asked for.
    pub fn finish(self) {
        for Field { name, place, .. } in self.fields {
            if !self.known.contains(&name.as_str()) {
                let message = format!("`{}` takes no argument `{name}`", self.of);
                let problem = Problem::new(message).at(place, "");
                let problem = match nearest_of(name, self.known.iter().copied()) {
                    Some(near) => problem.help(format!("did you mean `{near}`?")),
                    None if self.known.is_empty() => problem.help("it takes none"),
                    None => problem.help(format!("it takes {}", self.known.join(", "))),
                };
                self.problems.push(problem);
            }
        }
    }
}
