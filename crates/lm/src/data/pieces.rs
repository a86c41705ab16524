//! A shorter way to the ids of byte-level BPE, the tokenizer of nearly every decoder model.
//!
//! The general engine tracks where every character came from, which costs more than the merges. Where a tokenizer is
//! added tokens, a normalization to NFC, splits, a byte alphabet and merges, its pieces can be cut and looked up
//! directly. The ids are the same; what does not fit declines and takes the general way.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{AddedToken, Model, ModelWrapper};
use unicode_normalization_alignments::{UnicodeNormalization, is_nfc};

use super::pre_tokenizer::PreTokenizer;

/// The longest word. The library takes more than a hundred times the memory of a word to merge it, in each thread.
pub(super) const MAX_WORD_BYTES: usize = 1 << 24;

/// Pieces that a memory holds at most, and the longest of them.
const MAX_REMEMBERED: usize = 1 << 16;
const MAX_PIECE_BYTES: usize = 64;

/// How a tokenizer cuts text into pieces.
pub(super) struct Pieces {
    /// Added tokens that are found in the text as it is written, then those found in what is normalized.
    written_tokens: AddedTokens,
    normalized_tokens: AddedTokens,
    /// Whether text is normalized to NFC.
    composes: bool,
    pre_tokenizer: PreTokenizer,
    /// How each byte is written in the vocabulary.
    alphabet: [char; 256],
    /// The pieces that were seen. Each text takes one memory for itself, so there are as many as threads that encode at
    /// a time.
    memories: Mutex<Vec<Memory>>,
}

/// The ids of pieces.
type Memory = HashMap<Box<str>, Box<[u32]>>;

impl Pieces {
    /// Looks at how a tokenizer cuts text; `None` when it does something else.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Pieces> {
        let composes = tokenizer.get_normalizer().map_or(Some(false), composes)?;
        let pre_tokenizer = PreTokenizer::of(tokenizer.get_pre_tokenizer()?)?;
        let added = tokenizer.get_added_vocabulary();
        let (mut written, mut normalized) = (Vec::new(), Vec::new());
        for (&id, token) in added.get_added_tokens_decoder() {
            if token.normalized {
                let content = added.simple_id_to_token(id).unwrap_or_else(|| token.content.clone());
                normalized.push((content, id, token));
            } else {
                written.push((token.content.clone(), id, token));
            }
        }
        Some(Pieces {
            written_tokens: AddedTokens::of(written)?,
            normalized_tokens: AddedTokens::of(normalized)?,
            composes,
            pre_tokenizer,
            alphabet: alphabet(),
            memories: Mutex::default(),
        })
    }

    /// The ids of `text`; `None` when the engine must look at it.
    ///
    /// # Errors
    /// A pattern that backtracks without end, a word that is too long, a model that refuses a piece.
    pub(super) fn encode(&self, model: &ModelWrapper, text: &str) -> Result<Option<Vec<u32>>, String> {
        let memories = || self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = memories().pop().unwrap_or_default();
        let ids = self.encode_with(&mut seen, model, text);
        memories().push(seen);
        ids
    }

    fn encode_with(
        &self,
        seen: &mut Memory,
        model: &ModelWrapper,
        text: &str,
    ) -> Result<Option<Vec<u32>>, String> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let Some(parts) = self.written_tokens.split(text) else { return Ok(None) };
        for (part, token) in parts {
            let part = self.normalize(part);
            let Some(parts) = self.normalized_tokens.split(&part) else { return Ok(None) };
            for (part, token) in parts {
                self.pre_tokenizer.split(part, &mut |piece| self.append(model, piece, seen, &mut ids))?;
                ids.extend(token);
            }
            ids.extend(token);
        }
        Ok(Some(ids))
    }

    fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.composes && !is_nfc(text) {
            text.nfc().map(|(c, _)| c).collect::<String>().into()
        } else {
            text.into()
        }
    }

    fn append(
        &self,
        model: &ModelWrapper,
        piece: &str,
        seen: &mut Memory,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        if let Some(known) = seen.get(piece) {
            ids.extend_from_slice(known);
            return Ok(());
        }
        check_word(piece)?;
        let written: String = piece.bytes().map(|b| self.alphabet[usize::from(b)]).collect();
        let tokens = model.tokenize(&written).map_err(|e| e.to_string())?;
        let begin = ids.len();
        ids.extend(tokens.into_iter().map(|t| t.id));
        if piece.len() <= MAX_PIECE_BYTES && seen.len() < MAX_REMEMBERED {
            seen.insert(piece.into(), ids[begin..].into());
        }
        Ok(())
    }
}

/// Refuses a word that is too long: a stretch of text that is looked up as a whole.
pub(super) fn check_word(word: &str) -> Result<(), String> {
    if word.len() <= MAX_WORD_BYTES {
        return Ok(());
    }
    let (found, most) = (word.len().div_ceil(1 << 20), MAX_WORD_BYTES >> 20);
    // The space before a word belongs to it in byte-level BPE.
    let begin: String = word.strip_prefix(' ').unwrap_or(word).chars().take(20).collect();
    Err(format!(
        "the word {begin:?}… has {found} MiB, and a word may have {most}; put spaces into it, or cut the record into several"
    ))
}

/// Added tokens, each of which is cut out of a text wherever it stands.
struct AddedTokens {
    search: AhoCorasick,
    /// Their ids; `None` for a token that also looks at what stands beside it.
    ids: Vec<Option<u32>>,
}

impl AddedTokens {
    fn of(tokens: Vec<(String, u32, &AddedToken)>) -> Option<AddedTokens> {
        let mut builder = AhoCorasick::builder();
        // Of two tokens that begin at the same place, the longer one counts.
        builder.match_kind(MatchKind::LeftmostLongest);
        let search = builder.build(tokens.iter().map(|(content, _, _)| content)).ok()?;
        let alone = |token: &AddedToken| !(token.single_word || token.lstrip || token.rstrip);
        let ids = tokens.iter().map(|(_, id, token)| alone(token).then_some(*id)).collect();
        Some(AddedTokens { search, ids })
    }

    /// The texts before each token of `text`, with its id, and the text after the last one; `None` when a token looks
    /// at what stands beside it.
    fn split<'t>(&self, text: &'t str) -> Option<Vec<(&'t str, Option<u32>)>> {
        let (mut parts, mut begin) = (Vec::new(), 0);
        for found in self.search.find_iter(text) {
            parts.push((&text[begin..found.start()], Some(self.ids[found.pattern()]?)));
            begin = found.end();
        }
        parts.push((&text[begin..], None));
        Some(parts)
    }
}

/// Whether a normalizer brings text to NFC; `None` when it changes text in another way.
fn composes(normalizer: &NormalizerWrapper) -> Option<bool> {
    match normalizer {
        NormalizerWrapper::NFC(_) => Some(true),
        NormalizerWrapper::Sequence(all) => {
            all.as_ref().iter().try_fold(false, |before, next| Some(composes(next)? || before))
        }
        _ => None,
    }
}

/// GPT-2's alphabet: a printable Latin-1 byte is itself, the others are the letters from U+0100 on.
fn alphabet() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let byte = byte as u32;
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable { byte } else { next };
        next += u32::from(!printable);
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

#[cfg(test)]
mod tests;
