//! From a request to its model, and from a chat to its sequences, for all APIs.

use std::sync::Arc;

use axum::extract::Request;

use crate::backend::Model;
use crate::body::{Share, read_object};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::request::chat::ChatRequest;
use crate::run::{Plan, Run};
use crate::state::Shared;

/// A request whose body has been read.
pub(crate) struct Opened {
    pub(crate) fields: Fields,
    /// The name by which it asks for a model.
    pub(crate) asked_for: Option<String>,
    pub(crate) model: Model,
    /// The share of its body in memory.
    pub(crate) body: Arc<Share>,
}

/// Reads the body of a request and finds its model.
pub(crate) async fn open(shared: &Shared, request: Request) -> Result<Opened, ApiError> {
    let (mut fields, body) = read_object(request, &shared.bodies, &shared.options.limits).await?;
    let asked_for = fields.string("model")?;
    let model = shared.model(asked_for.as_deref())?;
    Ok(Opened { fields, asked_for, model, body })
}

/// Renders the conversation and submits its answers.
pub(crate) async fn ask(
    shared: &Arc<Shared>,
    model: Model,
    chat: ChatRequest,
    body: Arc<Share>,
) -> Result<Run, ApiError> {
    let ChatRequest { conversation, form, generation, max_tokens, logprobs, ends_after_call } = chat;
    let name = model.name.clone();
    let (prompt, form, tools) = shared
        .compute(&body, move |backend| {
            let prompt = backend.render(&name, &conversation)?;
            let form = form.map(|form| form.read(backend, &name, &prompt.format)).transpose()?;
            Ok((prompt, form, conversation.tools))
        })
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
        form,
        format,
        tools,
        ends_after_call,
    };
    Run::start(shared, plan)
}
