//! A model that generates text, what it is told, and what an answer is.

use super::sampler::Sampling;
use crate::data::Tokenizer;
use crate::model::Decoder;
use crate::model::hf::{HfConfig, LoadedModel};

/// Tokens of a prompt that go through the model at a time; bounds the memory for activations.
pub(super) const PREFILL_TOKENS: usize = 512;
/// Guesses that are made at a time unless something else is asked for: with the last token of an answer they are as many rows
/// as are summed as one is.
pub(super) const SPECULATIVE_TOKENS: usize = Decoder::FEW_ROWS - 1;

/// Generates with a loaded model.
#[derive(Debug)]
pub struct Generator {
    pub(super) model: LoadedModel,
}

/// How a text is generated.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// The most tokens of an answer.
    pub max_new_tokens: usize,
    /// The tokens that end an answer; they are not part of it.
    pub stop_ids: Vec<u32>,
    /// The most tokens that are guessed at a time; 0 guesses none. The text does not depend on it.
    pub speculative_tokens: usize,
}

impl Default for GenerateOptions {
    /// At most 256 tokens, always the likeliest; no token ends an answer, so take those of
    /// [`Generator::stop_ids`](Generator::stop_ids).
    fn default() -> GenerateOptions {
        GenerateOptions {
            sampling: Sampling::GREEDY,
            max_new_tokens: 256,
            stop_ids: Vec::new(),
            speculative_tokens: SPECULATIVE_TOKENS,
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model gave a stop token.
    EndOfText,
    /// It has as many tokens as were asked for.
    MaxNewTokens,
    /// The longest sequence is reached.
    ModelLength,
    /// The caller wanted no more.
    Caller,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation<T> {
    /// Its tokens or its text.
    pub output: T,
    /// Why it ended.
    pub stop: Stop,
    /// The number of its tokens.
    pub n_tokens: usize,
}

impl Generator {
    /// Over a loaded model.
    pub fn new(model: LoadedModel) -> Generator {
        Generator { model }
    }

    /// The model.
    pub fn model(&self) -> &LoadedModel {
        &self.model
    }

    /// The tokens that end a text, by the model's settings and the tokenizer's.
    pub fn stop_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let mut ids = self.model.config.special().eos.clone();
        ids.extend(tokenizer.special().eos);
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The settings of the model's folder.
    pub fn config(&self) -> &HfConfig {
        &self.model.config
    }
}
