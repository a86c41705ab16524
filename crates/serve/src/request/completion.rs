//! A request for the continuation of texts.

use super::generation::{Generation, max_tokens};
use super::input::{Input, inputs};
use crate::backend::Model;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::options::Options;

/// How many tokens a continuation has where the request does not say.
const DEFAULT_MAX_TOKENS: usize = 16;

/// The most alternatives that a token comes with. The API says five; the tools that measure models ask for more.
const MOST_ALTERNATIVES: i64 = 20;

/// A request for continuations.
#[derive(Clone, Debug)]
pub(crate) struct CompletionRequest {
    pub(crate) prompts: Vec<Input>,
    pub(crate) generation: Generation,
    pub(crate) max_tokens: usize,
    pub(crate) logprobs: Option<usize>,
    pub(crate) echoes: bool,
}

impl CompletionRequest {
    pub(crate) fn read(
        mut fields: Fields,
        model: &Model,
        options: &Options,
    ) -> Result<CompletionRequest, ApiError> {
        let limits = &options.limits;
        let prompt = fields.take("prompt").ok_or_else(|| fields.missing("prompt"))?;
        let prompts = inputs(prompt, "prompt", limits.n_sequences)?;
        if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::unsupported("suffix", "`suffix` is not supported."));
        }
        let generation = Generation::read(&mut fields, model, limits)?;
        let best_of = fields.integer("best_of", 0..=i64::from(u32::MAX))?;
        if best_of.is_some_and(|best_of| usize::try_from(best_of) != Ok(generation.n_answers)) {
            return Err(ApiError::unsupported("best_of", "`best_of` is not supported beyond `n`."));
        }
        if prompts.len() * generation.n_answers > limits.n_sequences {
            return Err(ApiError::field(
                "prompt",
                format!("Prompts times `n` are at most {}.", limits.n_sequences),
            ));
        }
        let echoes = fields.boolean("echo")?.unwrap_or(false);
        let logprobs = fields.integer("logprobs", 0..=MOST_ALTERNATIVES)?;
        // With the prompt alone there is something to show.
        let wanted = max_tokens(&mut fields, &["max_tokens", "max_completion_tokens"], i64::from(!echoes))?;
        Ok(CompletionRequest {
            prompts,
            generation,
            max_tokens: wanted.unwrap_or(DEFAULT_MAX_TOKENS),
            logprobs: logprobs.and_then(|n| usize::try_from(n).ok()),
            echoes,
        })
    }
}
