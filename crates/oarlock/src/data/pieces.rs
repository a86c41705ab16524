//! A shorter way to the ids of byte-level BPE, the tokenizer of nearly every decoder model.
//!
//! The general engine tracks where every character came from, which costs more than the merges. Where a tokenizer is
//! a regular expression, a byte alphabet and merges, its pieces can be cut and looked up directly. The ids are the
//! same; what does not fit declines and takes the general way.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use fancy_regex::Regex;
use serde_json::Value;
use tokenizers::{Model, ModelWrapper};

use super::engine::{check_word, gave_up};

/// The pieces of GPT-2, which `ByteLevel` cuts by itself.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Pieces that a memory holds at most, and the longest of them.
const MAX_REMEMBERED: usize = 1 << 16;
const MAX_PIECE_BYTES: usize = 64;

/// How a tokenizer cuts text into pieces.
pub(super) struct Pieces {
    pattern: String,
    /// Compiled when first needed; `None` inside when it cannot be.
    regex: OnceLock<Option<Regex>>,
    /// Texts with one of these inside are left to the engine.
    added: Vec<String>,
    /// Whether text is normalised to NFC first, which leaves ASCII alone.
    composes: bool,
    /// How each byte is written in the vocabulary.
    alphabet: [char; 256],
    /// The pieces that were seen. Each text takes one memory for itself, so there are as many as threads that encode at
    /// a time.
    memories: Mutex<Vec<Memory>>,
}

/// The ids of pieces.
type Memory = HashMap<Box<str>, Box<[u32]>>;

impl Pieces {
    /// Reads how a `tokenizer.json` cuts text; `None` when it does something else.
    pub(super) fn of(normalizer: &Value, pre_tokenizer: &Value, added: Vec<String>) -> Option<Pieces> {
        let composes = normalizer["type"] == "NFC";
        if !normalizer.is_null() && !composes {
            return None;
        }
        let byte_level = |v: &Value, cuts: bool| {
            v["type"] == "ByteLevel"
                && v["add_prefix_space"] == false
                && v["use_regex"].as_bool().unwrap_or(true) == cuts
        };
        let pattern = if byte_level(pre_tokenizer, true) {
            GPT2
        } else {
            let [split, bytes] = pre_tokenizer["pretokenizers"].as_array()?.as_slice() else { return None };
            let plain =
                split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] == false;
            if pre_tokenizer["type"] != "Sequence" || !plain || !byte_level(bytes, false) {
                return None;
            }
            split["pattern"]["Regex"].as_str()?
        };
        Some(Pieces {
            pattern: pattern.into(),
            regex: OnceLock::new(),
            added,
            composes,
            alphabet: alphabet(),
            memories: Mutex::default(),
        })
    }

    /// The ids of `text`; `None` when the engine must look at it.
    ///
    /// # Errors
    /// A pattern that backtracks without end, a word that is too long.
    pub(super) fn encode(&self, model: &ModelWrapper, text: &str) -> Result<Option<Vec<u32>>, String> {
        if self.composes && !text.is_ascii() || self.added.iter().any(|token| text.contains(token.as_str())) {
            return Ok(None);
        }
        let Some(regex) = self.regex.get_or_init(|| Regex::new(&self.pattern).ok()) else { return Ok(None) };
        let memories = || self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = memories().pop().unwrap_or_default();
        let ids = self.encode_with(&mut seen, regex, model, text);
        memories().push(seen);
        ids
    }

    fn encode_with(
        &self,
        seen: &mut Memory,
        regex: &Regex,
        model: &ModelWrapper,
        text: &str,
    ) -> Result<Option<Vec<u32>>, String> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut end = 0;
        for piece in regex.find_iter(text) {
            let piece = piece.map_err(|e| gave_up(&self.pattern, &e))?;
            // What no alternative matches is a piece of its own.
            for piece in [&text[end..piece.start()], piece.as_str()] {
                check_word(piece)?;
                if self.append(model, piece, seen, &mut ids).is_none() {
                    return Ok(None);
                }
            }
            end = piece.end();
        }
        check_word(&text[end..])?;
        Ok(self.append(model, &text[end..], seen, &mut ids).map(|()| ids))
    }

    fn append(&self, model: &ModelWrapper, piece: &str, seen: &mut Memory, ids: &mut Vec<u32>) -> Option<()> {
        if piece.is_empty() {
            return Some(());
        }
        if let Some(known) = seen.get(piece) {
            ids.extend_from_slice(known);
            return Some(());
        }
        let written: String = piece.bytes().map(|b| self.alphabet[usize::from(b)]).collect();
        let tokens = model.tokenize(&written).ok()?;
        let begin = ids.len();
        ids.extend(tokens.into_iter().map(|t| t.id));
        if piece.len() <= MAX_PIECE_BYTES && seen.len() < MAX_REMEMBERED {
            seen.insert(piece.into(), ids[begin..].into());
        }
        Some(())
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
