//! The continuation of one text, token by token.

use std::ops::ControlFlow;

use oarlock_engine::Result;

use super::generator::{GenerateOptions, Generation, Generator, PREFILL_TOKENS, Stop};
use super::sampler::Sampler;
use crate::data::Tokenizer;

impl Generator {
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
}
