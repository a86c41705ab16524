//! A request for the continuation of texts.

use super::generation::{Generation, max_tokens};
use super::input::{Input, inputs};
use crate::backend::Model;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::options::{Limits, Options};

/// How many tokens a continuation has where the request does not say.
const DEFAULT_MAX_TOKENS: usize = 16;

/// The most alternatives that a token comes with. The API says five; the tools that measure models ask for more.
const MOST_ALTERNATIVES: i64 = 20;

/// A request for continuations.
#[derive(Clone, Debug)]
pub(crate) struct CompletionRequest {
    pub(crate) prompts: Vec<Input>,
    pub(crate) generation: Generation,
    /// How many answers are drawn, of which those are shown that the model finds the likeliest.
    pub(crate) n_drawn: usize,
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
        let n_drawn = drawn(&mut fields, &generation, limits)?;
        if prompts.len() * n_drawn > limits.n_sequences {
            return Err(ApiError::field(
                "prompt",
                format!("Prompts times `n` or `best_of` are at most {}.", limits.n_sequences),
            ));
        }
        let echoes = fields.boolean("echo")?.unwrap_or(false);
        let logprobs = fields.integer("logprobs", 0..=MOST_ALTERNATIVES)?;
        // With the prompt alone there is something to show.
        let wanted = max_tokens(&mut fields, &["max_tokens", "max_completion_tokens"], i64::from(!echoes))?;
        Ok(CompletionRequest {
            prompts,
            generation,
            n_drawn,
            max_tokens: wanted.unwrap_or(DEFAULT_MAX_TOKENS),
            logprobs: logprobs.and_then(|n| usize::try_from(n).ok()),
            echoes,
        })
    }
}

/// `best_of`, or `n` where it is not there.
fn drawn(fields: &mut Fields, generation: &Generation, limits: &Limits) -> Result<usize, ApiError> {
    let most = i64::try_from(limits.n_choices).unwrap_or(i64::MAX);
    let Some(best_of) = fields.integer("best_of", 1..=most)? else { return Ok(generation.n_answers) };
    let n_drawn = usize::try_from(best_of).unwrap_or(1);
    if n_drawn < generation.n_answers {
        return Err(ApiError::field("best_of", "`best_of` is at least `n`."));
    }
    if n_drawn > generation.n_answers && generation.streams == Some(true) {
        let message = "Which answers are the best is known when all have ended: they cannot be streamed.";
        return Err(ApiError::field("best_of", message));
    }
    Ok(n_drawn)
}
