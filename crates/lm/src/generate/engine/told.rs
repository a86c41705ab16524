//! A prompt with the log-probability of each of its tokens, as it is read.

use oarlock_engine::Result;

use super::sink::Token;
use crate::generate::own_probs::OwnProbs;
use crate::generate::sampler::check_logits;

/// The tokens of a prompt that were read so far.
pub(super) struct Told {
    n_top: usize,
    pub(super) tokens: Vec<Token>,
}

impl Told {
    /// Of a prompt, each token with as many of the likeliest in its place. Nothing stands before the first one that could
    /// say how likely it is.
    pub(super) fn new(prompt: &[u32], n_top: usize) -> Told {
        let first = prompt.first().map(|&id| Token { id, logprob: None, top: Vec::new() });
        Told { n_top, tokens: first.into_iter().collect() }
    }

    /// Takes the logits behind the positions from `first` on, row by row. What follows the last token is no part of the prompt.
    pub(super) fn take(
        &mut self,
        prompt: &[u32],
        first: usize,
        logits: &[f32],
        vocab_size: usize,
    ) -> Result<()> {
        for (at, logits) in logits.chunks_exact(vocab_size).enumerate() {
            // What was told already may be read once more.
            let next = self.tokens.len();
            let Some(&id) = prompt.get(next).filter(|_| next == first + at + 1) else { continue };
            check_logits(logits)?;
            let probs = OwnProbs::new(logits, self.n_top);
            let logprob = logits.get(id as usize).map(|logit| probs.of(*logit));
            self.tokens.push(Token { id, logprob, top: probs.top() });
        }
        Ok(())
    }
}
