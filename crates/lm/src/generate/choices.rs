//! Which of a few tokens a model finds the likeliest after prompts that begin alike.

use oarlock_engine::{Error, Result};

use super::generator::{Generator, PREFILL_TOKENS};
use super::sampler::check_logits;
use crate::model::LayerCache;

impl Generator {
    /// For each prompt the index of the likeliest of `choices` as its next token, of equal ones the first. What all prompts
    /// begin with is read once.
    ///
    /// # Errors
    /// As [`Generator::generate`]; no choices, or one that the model does not know.
    pub fn choose(&self, prompts: &[Vec<u32>], choices: &[u32]) -> Result<Vec<usize>> {
        let model = self.as_model();
        prompts.iter().try_for_each(|prompt| model.check_prompt(prompt))?;
        let vocab_size = self.model.decoder.config().vocab_size;
        if choices.is_empty() || choices.iter().any(|&id| id as usize >= vocab_size) {
            return Err(Error::Usage(format!(
                "choose: the choices {choices:?} are not among {vocab_size} tokens"
            )));
        }
        let Some(first) = prompts.first() else { return Ok(Vec::new()) };
        let alike = |prompt: &Vec<u32>| first.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // The last token of each prompt is read by itself, for its logits.
        let shared = prompts.iter().map(|prompt| alike(prompt).min(prompt.len() - 1)).min().unwrap_or(0);
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let mut cache = model.empty_cache(longest)?;
        // What they share is read once, so all are turned as the longest.
        cache.iter_mut().for_each(|layer| layer.expect_prompt(longest));
        for part in first[..shared].chunks(PREFILL_TOKENS) {
            model.next_logits(part, &mut cache)?;
        }
        let mut chosen = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            cache.iter_mut().for_each(|cache: &mut LayerCache| cache.truncate(shared));
            let mut logits = Vec::new();
            for part in prompt[shared..].chunks(PREFILL_TOKENS) {
                logits = model.next_logits(part, &mut cache)?.to_f32_vec()?;
            }
            // No choice is larger than NaN, so all answers would be the first one.
            check_logits(&logits)?;
            let of = |index: usize| logits[choices[index] as usize];
            chosen.push(
                (1..choices.len()).fold(0, |best, index| if of(index) > of(best) { index } else { best }),
            );
        }
        Ok(chosen)
    }
}
