//! What is asked of an engine, and what is refused.

use std::fmt;
use std::time::Duration;

use crate::generate::constraint::Constraint;
use crate::generate::generator::GenerateOptions;
use crate::generate::model::Model;
use crate::generate::refusal::Refusal;
use crate::generate::sampler::{Sampler, Sampling};

/// A prompt to continue, and how.
pub struct Request {
    /// The tokens of the prompt.
    pub ids: Vec<u32>,
    /// The adapter of the model that answers, by its number; `None` is the model alone.
    pub adapter: Option<usize>,
    /// How the next token is chosen; the seed is that of this answer.
    pub sampling: Sampling,
    /// What is added to the logits of some tokens before they are sampled from.
    pub logit_bias: Vec<(u32, f32)>,
    /// What may come next, where not every token may.
    pub constraint: Option<Box<dyn Constraint>>,
    /// The most tokens of the answer.
    pub max_new_tokens: usize,
    /// The tokens that end the answer; they are not part of it.
    pub stop_ids: Vec<u32>,
    /// How many of the likeliest tokens are given with each token, at most [`Request::MOST_TOP_LOGPROBS`]. `None` also leaves out the log-probability of the token
    /// itself, which takes a pass over all logits.
    pub n_top_logprobs: Option<usize>,
    /// The same of the tokens of the prompt, which then come first. All of it is read, whatever is kept of earlier prompts.
    pub n_prompt_logprobs: Option<usize>,
}

impl Request {
    /// The most of the likeliest tokens that can be asked for.
    pub const MOST_TOP_LOGPROBS: usize = 64;

    /// A request that takes the likeliest token each time, 256 times.
    pub fn new(ids: Vec<u32>) -> Request {
        Request {
            ids,
            adapter: None,
            sampling: Sampling::GREEDY,
            logit_bias: Vec::new(),
            constraint: None,
            max_new_tokens: 256,
            stop_ids: Vec::new(),
            n_top_logprobs: None,
            n_prompt_logprobs: None,
        }
    }

    /// A request with these options.
    pub(in crate::generate) fn with_options(ids: Vec<u32>, options: &GenerateOptions) -> Request {
        let GenerateOptions { sampling, max_new_tokens, ref stop_ids, .. } = *options;
        Request { sampling, max_new_tokens, stop_ids: stop_ids.clone(), ..Request::new(ids) }
    }
}

/// A request that a model can answer, and where the answer goes.
#[derive(Debug)]
pub(in crate::generate) struct Checked<S> {
    pub(super) request: Request,
    pub(super) sampler: Sampler,
    pub(super) sink: S,
    /// When it was submitted, by the clock of who answers it.
    pub(super) submitted: Duration,
}

impl<S> Checked<S> {
    /// Checks a request.
    ///
    /// # Errors
    /// A prompt that the model cannot continue, settings that make no sense, or bias on tokens that it does not know.
    pub(in crate::generate) fn new(
        mut request: Request,
        sink: S,
        model: Model<'_>,
        submitted: Duration,
    ) -> Result<Checked<S>, Refusal> {
        model.check_prompt(&request.ids)?;
        let bias = std::mem::take(&mut request.logit_bias);
        let vocab_size = model.decoder.config().vocab_size;
        if let Some((id, _)) = bias.iter().find(|(id, _)| *id as usize >= vocab_size) {
            return Err(Refusal::Sampling(format!(
                "logit_bias names token {id}, but the model knows {vocab_size}"
            )));
        }
        let most = Request::MOST_TOP_LOGPROBS;
        for (name, n) in
            [("n_top_logprobs", request.n_top_logprobs), ("n_prompt_logprobs", request.n_prompt_logprobs)]
        {
            if let Some(n) = n.filter(|n| *n > most) {
                return Err(Refusal::Sampling(format!("{name} is {n}; expected at most {most}")));
            }
        }
        let sampler = Sampler::new(request.sampling, bias)?;
        Ok(Checked { request, sampler, sink, submitted })
    }

    /// The positions of its text when it is as long as it can become, and no longer than `longest`.
    pub(super) fn longest_text(&self, longest: usize) -> usize {
        longest.min(self.request.ids.len().saturating_add(self.request.max_new_tokens))
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("ids", &self.ids)
            .field("adapter", &self.adapter)
            .field("sampling", &self.sampling)
            .field("logit_bias", &self.logit_bias)
            .field("is_constrained", &self.constraint.is_some())
            .field("max_new_tokens", &self.max_new_tokens)
            .field("stop_ids", &self.stop_ids)
            .field("n_top_logprobs", &self.n_top_logprobs)
            .field("n_prompt_logprobs", &self.n_prompt_logprobs)
            .finish()
    }
}
