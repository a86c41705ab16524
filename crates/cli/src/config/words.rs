//! The words of a command as one text, so that every word, and every part of one, has its location in messages.

use std::ops::Range;
use std::sync::Arc;

use oarlock_config::settings::location::{Location, SourceText, ValueSource};

/// Words of a command line.
#[derive(Clone, Debug)]
pub struct Words {
    source: Arc<SourceText>,
    bytes: Vec<Range<usize>>,
}

impl Words {
    /// The words as they came.
    pub fn new(words: &[String]) -> Words {
        let mut text = String::new();
        let mut bytes = Vec::with_capacity(words.len());
        for word in words {
            if !text.is_empty() {
                text.push(' ');
            }
            bytes.push(text.len()..text.len() + word.len());
            text.push_str(word);
        }
        let source = SourceText {
            read_from: ValueSource::Arguments,
            name: "command line".to_owned(),
            text,
            words: bytes.clone(),
        };
        Words { source: Arc::new(source), bytes }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// A word, if there are so many.
    pub fn get(&self, i: usize) -> Option<&str> {
        self.source.text.get(self.bytes.get(i)?.clone())
    }

    /// The location of a word; behind the last one, the end of the text.
    pub fn location(&self, i: usize) -> Location {
        let end = self.source.text.len();
        Location { source: self.source.clone(), bytes: self.bytes.get(i).cloned().unwrap_or(end..end) }
    }

    /// The location of some bytes of a word.
    pub fn part(&self, i: usize, bytes: Range<usize>) -> Location {
        let whole = self.location(i);
        let at = |offset: usize| (whole.bytes.start + offset).min(whole.bytes.end);
        Location { bytes: at(bytes.start)..at(bytes.end), ..whole }
    }

    /// The words from the `first` on, each still with its location in the whole command.
    #[must_use]
    pub fn from(&self, first: usize) -> Words {
        let bytes = self.bytes.get(first..).unwrap_or_default().to_vec();
        Words { source: self.source.clone(), bytes }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// All of them, as a program is called with them.
    pub fn to_vec(&self) -> Vec<String> {
        self.iter().map(str::to_owned).collect()
    }
}
