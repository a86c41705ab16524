//! The pre-tokenizers of byte-level BPE: they split a text into pieces, each of which the model looks at alone.

use fancy_regex::Regex;
use tokenizers::SplitDelimiterBehavior::Isolated;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;

/// The pieces of GPT-2, into which `ByteLevel` splits by itself.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The splits of a pre-tokenizer. Each splits the pieces that those before it have left.
pub(super) struct PreTokenizer {
    splits: Vec<Split>,
}

enum Split {
    /// Each match is a piece, and so is what no match covers.
    Matches(Regex),
    /// Numerals are pieces of their own: each digit where they are `individual`, else each run of them.
    Digits { individual: bool },
}

impl PreTokenizer {
    /// Reads a pre-tokenizer that ends in the byte alphabet; `None` when it does something else than split.
    pub(super) fn of(pre_tokenizer: &PreTokenizerWrapper) -> Option<PreTokenizer> {
        let all = match pre_tokenizer {
            PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref(),
            single => std::slice::from_ref(single),
        };
        let Some((PreTokenizerWrapper::ByteLevel(bytes), before)) = all.split_last() else { return None };
        let mut splits = before.iter().map(Split::of).collect::<Option<Vec<Split>>>()?;
        if bytes.use_regex {
            splits.push(Split::Matches(Regex::new(GPT2).ok()?));
        }
        (!bytes.add_prefix_space).then_some(PreTokenizer { splits })
    }

    /// Gives the pieces of `text` to `take`, in order. None is empty.
    ///
    /// # Errors
    /// A pattern that backtracks without end; what `take` returns.
    pub(super) fn split(
        &self,
        text: &str,
        take: &mut impl FnMut(&str) -> Result<(), String>,
    ) -> Result<(), String> {
        apply(&self.splits, text, take)
    }
}

impl Split {
    fn of(pre_tokenizer: &PreTokenizerWrapper) -> Option<Split> {
        match pre_tokenizer {
            PreTokenizerWrapper::Split(split) if split.behavior == Isolated && !split.invert => {
                let regex = match &split.pattern {
                    SplitPattern::Regex(pattern) => Regex::new(pattern),
                    SplitPattern::String(text) => Regex::new(&fancy_regex::escape(text)),
                };
                Some(Split::Matches(regex.ok()?))
            }
            PreTokenizerWrapper::Digits(digits) => {
                Some(Split::Digits { individual: digits.individual_digits })
            }
            _ => None,
        }
    }
}

fn apply(
    splits: &[Split],
    text: &str,
    take: &mut impl FnMut(&str) -> Result<(), String>,
) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    let Some((split, rest)) = splits.split_first() else { return take(text) };
    let mut begin = 0;
    match split {
        Split::Matches(regex) => {
            for found in regex.find_iter(text) {
                let found = found.map_err(|e| gave_up(regex.as_str(), &e))?;
                apply(rest, &text[begin..found.start()], take)?;
                apply(rest, found.as_str(), take)?;
                begin = found.end();
            }
        }
        Split::Digits { individual } => {
            let mut in_number = false;
            for (at, c) in text.char_indices() {
                if c.is_numeric() != in_number || in_number && *individual {
                    apply(rest, &text[begin..at], take)?;
                    (begin, in_number) = (at, c.is_numeric());
                }
            }
        }
    }
    apply(rest, &text[begin..], take)
}

/// What to say of a pattern that backtracks too long.
pub(super) fn gave_up(pattern: &str, error: &fancy_regex::Error) -> String {
    format!(
        "its pattern {pattern:?} does not come to an end with this text ({error}); write it without nested repeats"
    )
}
