//! `/v1/chat/completions`: the answer to a conversation.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use crate::ask::{Opened, ask, open};
use crate::error::{ApiError, json_response};
use crate::reply::chat::{ChatStream, whole};
use crate::reply::head::Head;
use crate::reply::stream;
use crate::request::chat::ChatRequest;
use crate::state::Shared;

pub(super) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let options = &shared.options;
    let Opened { fields, asked_for, model, body } = open(&shared, request).await?;
    let chat = ChatRequest::read(fields, &model, options)?;
    let streams = chat.generation.streams.unwrap_or(options.streams_by_default);
    let object = if streams { "chat.completion.chunk" } else { "chat.completion" };
    let head = Head::new("chatcmpl-", object, &model, asked_for);
    let (n_answers, includes_usage) = (chat.generation.n_answers, chat.generation.includes_usage);
    let has_logprobs = chat.logprobs.is_some();
    let run = ask(&shared, model, chat, body).await?;
    if streams {
        let wire = ChatStream::new(&head, n_answers, includes_usage, has_logprobs);
        return stream::respond(run, wire, options.limits.ping_time).await;
    }
    Ok(json_response(StatusCode::OK, &whole(run, head, n_answers, has_logprobs).await?))
}
