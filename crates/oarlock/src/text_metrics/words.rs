//! Words of texts, Chinese ones too, by jieba.

use jieba_rs::Jieba;

/// Divides texts into words.
pub(super) struct Words(Jieba);

impl Words {
    pub(super) fn new() -> Words {
        Words(Jieba::new())
    }

    /// The words of a text, with all that stands between them.
    pub(super) fn of<'t>(&self, text: &'t str) -> Vec<&'t str> {
        self.0.cut(text, true).into_iter().map(|token| token.word).collect()
    }
}
