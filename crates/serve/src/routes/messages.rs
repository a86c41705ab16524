//! `/v1/messages`: chats in the form of Anthropic's API, which coding agents speak.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::ask::{Opened, ask, open};
use crate::backend::Model;
use crate::body::Share;
use crate::error::{ApiError, json_response};
use crate::reply::anthropic::{MessageStream, whole};
use crate::reply::stream;
use crate::request::anthropic::read;
use crate::request::chat::ChatRequest;
use crate::state::Shared;

pub(super) async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    in_its_form(try_answer(&shared, request).await)
}

pub(super) async fn count(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let counted = try_count(&shared, request).await;
    in_its_form(counted.map(|n_tokens| json_response(StatusCode::OK, &json!({ "input_tokens": n_tokens }))))
}

/// An error has another form here.
fn in_its_form(result: Result<Response, ApiError>) -> Response {
    result.unwrap_or_else(|error| error.response(&error.anthropic_body()))
}

async fn read_chat(
    shared: &Shared,
    request: Request,
    needs_max_tokens: bool,
) -> Result<(String, Model, ChatRequest, Arc<Share>), ApiError> {
    let options = &shared.options;
    let Opened { fields, asked_for, model, body } = open(shared, request).await?;
    let chat = read(fields, &model, options, needs_max_tokens)?;
    Ok((asked_for.unwrap_or_else(|| model.name.clone()), model, chat, body))
}

async fn try_answer(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let (name, model, chat, body) = read_chat(shared, request, true).await?;
    let streams = chat.generation.streams.unwrap_or(false);
    let run = ask(shared, model, chat, body).await?;
    let message = MessageStream::new(name, run.n_prompt_tokens());
    if streams {
        return stream::respond(run, message, shared.options.limits.ping_time).await;
    }
    let reply: Value = whole(run, message).await?;
    Ok(json_response(StatusCode::OK, &reply))
}

async fn try_count(shared: &Arc<Shared>, request: Request) -> Result<usize, ApiError> {
    let (_, model, chat, body) = read_chat(shared, request, false).await?;
    let prompt =
        shared.compute(&body, move |backend| backend.render(&model.name, &chat.conversation)).await?;
    Ok(prompt.ids.len())
}
