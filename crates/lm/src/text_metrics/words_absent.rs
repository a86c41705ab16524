//! Words of texts where the feature `tokenizers` is not there: what stands between spaces.

/// Divides texts into words.
pub(super) struct Words;

impl Words {
    pub(super) fn new() -> Words {
        Words
    }

    /// The words of a text.
    pub(super) fn of<'t>(&self, text: &'t str) -> Vec<&'t str> {
        text.split_whitespace().collect()
    }
}
