//! Text from a model: the prompt in one pass, then token by token over a key-value cache.

mod batch;
mod chat;
mod choices;
mod sampler;

pub use batch::{Model, Prompt};
pub use chat::Chat;
pub use sampler::Sampling;

use std::ops::ControlFlow;

use oarlock_engine::Result;
use oarlock_tensor::Tensor;

use crate::data::Tokenizer;
use crate::model::LayerCache;
use crate::model::hf::{HfConfig, LoadedModel};
use sampler::Sampler;

/// Tokens of a prompt that go through the model at a time; bounds the memory for activations.
const PREFILL_TOKENS: usize = 512;

/// Generates with a loaded model.
#[derive(Debug)]
pub struct Generator {
    model: LoadedModel,
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
}

impl Default for GenerateOptions {
    /// At most 256 tokens, always the likeliest; no token ends an answer, so take those of
    /// [`Generator::stop_ids`](Generator::stop_ids).
    fn default() -> GenerateOptions {
        GenerateOptions { sampling: Sampling::GREEDY, max_new_tokens: 256, stop_ids: Vec::new() }
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

    /// Continues `prompt`; `on_token` sees each token as it comes and may end the answer.
    ///
    /// # Errors
    /// An empty prompt, one that is longer than the model allows or holds tokens that it does not know, sampling
    /// settings that make no sense, and whatever the model or `on_token` reports.
    pub fn generate(
        &self,
        prompt: &[u32],
        options: &GenerateOptions,
        mut on_token: impl FnMut(u32) -> Result<ControlFlow<()>>,
    ) -> Result<Generation<Vec<u32>>> {
        let n_positions = self.as_model().check_prompt(prompt)?;
        let mut sampler = Sampler::new(options.sampling)?;
        let mut cache =
            self.empty_cache(n_positions.min(prompt.len().saturating_add(options.max_new_tokens)))?;
        let mut ids = prompt.to_vec();
        let finish = |ids: &[u32], stop| {
            let output = ids[prompt.len()..].to_vec();
            Ok(Generation { n_tokens: output.len(), output, stop })
        };
        if options.max_new_tokens == 0 {
            return finish(&ids, Stop::MaxNewTokens);
        }
        cache.iter_mut().for_each(|layer| layer.expect_prompt(prompt.len()));
        let mut logits = Vec::new();
        for part in prompt.chunks(PREFILL_TOKENS) {
            logits = self.next_logits(part, &mut cache)?;
        }
        loop {
            let id = sampler.next(&logits, &ids)?;
            if options.stop_ids.contains(&id) {
                return finish(&ids, Stop::EndOfText);
            }
            ids.push(id);
            if on_token(id)?.is_break() {
                return finish(&ids, Stop::Caller);
            }
            if ids.len() - prompt.len() == options.max_new_tokens {
                return finish(&ids, Stop::MaxNewTokens);
            }
            if ids.len() == n_positions {
                return finish(&ids, Stop::ModelLength);
            }
            logits = self.next_logits(&[id], &mut cache)?;
        }
    }

    /// As [`Generator::generate`], with text: `on_text` sees whole characters only.
    ///
    /// # Errors
    /// As [`Generator::generate`], or a tokenizer that cannot be used.
    pub fn generate_text(
        &self,
        tokenizer: &Tokenizer,
        prompt: &str,
        options: &GenerateOptions,
        mut on_text: impl FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<Generation<String>> {
        let mut stream = tokenizer.stream(true);
        let mut text = String::new();
        let mut emit = |piece: String| {
            text += &piece;
            if piece.is_empty() { Ok(ControlFlow::Continue(())) } else { on_text(&piece) }
        };
        let answer = self.generate(&tokenizer.encode(prompt)?, options, |id| emit(stream.push(id)?))?;
        // The answer is over: whether the caller wants more makes no difference.
        let _ = emit(stream.finish()?)?;
        Ok(Generation { output: text, stop: answer.stop, n_tokens: answer.n_tokens })
    }

    /// The model with what it computes in.
    fn as_model(&self) -> Model<'_> {
        let LoadedModel { decoder, dtype, device, n_positions, .. } = &self.model;
        Model { decoder, dtype: *dtype, device, n_positions: *n_positions }
    }

    fn empty_cache(&self, capacity: usize) -> Result<Vec<LayerCache>> {
        let LoadedModel { decoder, dtype, device, .. } = &self.model;
        Ok(decoder.empty_cache(capacity, *dtype, device)?)
    }

    fn next_logits(&self, ids: &[u32], cache: &mut [LayerCache]) -> Result<Vec<f32>> {
        let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        let ids = Tensor::from_slice(&ids, [1, ids.len()], &self.model.device)?;
        let logits = self.model.decoder.next_logits(&ids, cache)?;
        Ok(logits.to_f32_vec()?)
    }
}

#[cfg(test)]
mod tests;
