//! The fence around the crate `tokenizers`: what is asked of it, and its failures as messages, panics included.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde_json::Value;

use super::pieces::Pieces;

type Result<T> = std::result::Result<T, String>;

/// A built `tokenizer.json`.
pub(super) struct Engine {
    tokenizer: tokenizers::Tokenizer,
    /// The short way, where there is one.
    pieces: Option<Pieces>,
}

/// The parts that decide whether the short way can be taken.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    /// Read because the library that builds it takes for granted that its strings are whole.
    #[serde(default, rename = "decoder")]
    _decoder: Value,
}

#[derive(Deserialize)]
struct Added {
    content: String,
}

impl Engine {
    /// Builds the vocabulary of a `tokenizer.json`.
    pub(super) fn build(json: &[u8]) -> Result<Engine> {
        let whole = |cause: String| format!("{cause}; is it a whole tokenizer.json?");
        let parts: Parts = serde_json::from_slice(json).map_err(|e| whole(e.to_string()))?;
        let mut tokenizer = fenced(|| tokenizers::Tokenizer::from_bytes(json)).map_err(whole)?;
        // Rows are cut and filled here; what the file says about it would hide tokens.
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        let added = parts.added_tokens.into_iter().map(|added| added.content).collect();
        Ok(Engine { tokenizer, pieces: Pieces::of(&parts.normalizer, &parts.pre_tokenizer, added) })
    }

    /// Whether a token never depends on the text before it.
    pub(super) fn is_byte_level_bpe(&self) -> bool {
        self.pieces.is_some()
    }

    /// The number of ids. They may have gaps, so the largest decides.
    pub(super) fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    pub(super) fn id_of(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self.pieces.as_ref().and_then(|pieces| pieces.encode(self.tokenizer.get_model(), text)) {
            Some(ids) => Ok(ids),
            None => self.encode_whole(text),
        }
    }

    /// As [`encode`](Self::encode), without the short way.
    pub(super) fn encode_whole(&self, text: &str) -> Result<Vec<u32>> {
        Ok(fenced(|| self.tokenizer.encode_fast(text, false))?.get_ids().to_vec())
    }

    /// The ids of `text`, and the byte of it at which each begins.
    pub(super) fn encode_with_begins(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>)> {
        let encoding = fenced(|| self.tokenizer.encode(text, false))?;
        let begins = encoding.get_offsets().iter().map(|(begin, _)| *begin).collect();
        Ok((encoding.get_ids().to_vec(), begins))
    }

    pub(super) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        fenced(|| self.tokenizer.decode(ids, skip_special_tokens))
    }
}

/// Runs foreign code that answers some broken files with a panic instead of an error.
fn fenced<T>(body: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    let done = catch_unwind(AssertUnwindSafe(body));
    done.map_err(|_| "a part of it is not what its type asks for".to_string())?.map_err(|e| e.to_string())
}
