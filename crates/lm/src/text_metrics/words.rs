//! Words of texts, Chinese ones too, by jieba.

use std::io::BufReader;

use jieba_rs::Jieba;
use ruzstd::decoding::StreamingDecoder;

/// The dictionary of jieba, whose words have numbers here but no kinds: bench/golden/make_words.py. The crate would compress its
/// own while it is built, which takes longer than all the rest of it.
const DICTIONARY: &[u8] = include_bytes!("../../data/words.txt.zst");

/// Divides texts into words.
pub(super) struct Words(Jieba);

impl Words {
    pub(super) fn new() -> Words {
        let lines = StreamingDecoder::new(DICTIONARY).expect("the dictionary is a part of the program");
        Words(Jieba::with_dict(&mut BufReader::new(lines)).expect("the dictionary is a part of the program"))
    }

    /// The words of a text, with all that stands between them.
    pub(super) fn of<'t>(&self, text: &'t str) -> Vec<&'t str> {
        self.0.cut(text, true).into_iter().map(|token| token.word).collect()
    }
}
