//! A conversation as text, and the characters that mark places in it.

use std::ops::Range;

/// A conversation as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The whole text.
    pub text: String,
    /// What the model gives in it (places in bytes, ascending and apart): each message of the assistant, from where
    /// the generation prompt ends to the end of the turn; or the template's own `{% generation %}` blocks.
    pub assistant: Vec<Range<usize>>,
}

/// Around what stands in a `{% generation %}` block, and in the place of a message. No text has these characters.
pub(super) const BEGIN: char = '\u{fdd0}';

pub(super) const END: char = '\u{fdd1}';
