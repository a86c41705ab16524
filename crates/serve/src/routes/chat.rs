//! `/v1/chat/completions`: the answer to a conversation.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use crate::body::read_object;
use crate::error::{ApiError, json_response};
use crate::reply::chat::{ChatStream, whole};
use crate::reply::head::Head;
use crate::reply::stream;
use crate::request::chat::ChatRequest;
use crate::run::{Plan, Run};
use crate::state::Shared;

pub(super) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let options = &shared.options;
    let mut fields = read_object(request, &shared.bodies, &options.limits).await?;
    let asked_for = fields.string("model")?;
    let model = shared.model(asked_for.as_deref())?;
    let chat = ChatRequest::read(fields, &model, options)?;
    let (name, mut conversation) = (model.name.clone(), chat.conversation);
    let (prompt, tools) = shared
        .compute(move |backend| {
            let prompt = backend.render(&name, &conversation)?;
            Ok((prompt, std::mem::take(&mut conversation.tools)))
        })
        .await?;
    let mut format = prompt.format;
    if tools.is_empty() {
        // What looks like a call is text where there is nothing to call.
        format.calls = None;
    }
    let generation = chat.generation;
    let streams = generation.streams.unwrap_or(options.streams_by_default);
    let object = if streams { "chat.completion.chunk" } else { "chat.completion" };
    let head = Head::new("chatcmpl-", object, &model, asked_for);
    let n_answers = generation.n_answers;
    let plan = Plan {
        model,
        prompts: vec![prompt.ids],
        n_answers,
        sampling: generation.sampling,
        seed: generation.seed,
        max_tokens: chat.max_tokens,
        stops: generation.stops,
        stop_ids: generation.stop_ids,
        ignores_eos: generation.ignores_eos,
        logprobs: chat.logprobs,
        prompt_logprobs: None,
        format,
        tools,
        ends_after_call: chat.ends_after_call,
    };
    let run = Run::start(&shared, plan)?;
    let has_logprobs = chat.logprobs.is_some();
    if streams {
        let wire = ChatStream::new(&head, n_answers, generation.includes_usage, has_logprobs);
        return stream::respond(run, wire, options.limits.ping_time).await;
    }
    Ok(json_response(StatusCode::OK, &whole(run, head, n_answers, has_logprobs).await?))
}
