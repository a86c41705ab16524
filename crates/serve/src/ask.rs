//! From a request of a chat to its sequences, for all APIs that have chats.

use std::sync::Arc;

use crate::backend::Model;
use crate::error::ApiError;
use crate::request::chat::ChatRequest;
use crate::run::{Plan, Run};
use crate::state::Shared;

/// Renders the conversation and submits its answers.
pub(crate) async fn ask(shared: &Arc<Shared>, model: Model, chat: ChatRequest) -> Result<Run, ApiError> {
    let ChatRequest { conversation, generation, max_tokens, logprobs, ends_after_call } = chat;
    let name = model.name.clone();
    let (prompt, tools) = shared
        .compute(move |backend| Ok((backend.render(&name, &conversation)?, conversation.tools)))
        .await?;
    let mut format = prompt.format;
    if tools.is_empty() {
        // What looks like a call is text where there is nothing to call.
        format.calls = None;
    }
    let plan = Plan {
        model,
        prompts: vec![prompt.ids],
        n_answers: generation.n_answers,
        sampling: generation.sampling,
        seed: generation.seed,
        max_tokens,
        stops: generation.stops,
        stop_ids: generation.stop_ids,
        ignores_eos: generation.ignores_eos,
        logprobs,
        prompt_logprobs: None,
        format,
        tools,
        ends_after_call,
    };
    Run::start(shared, plan)
}
