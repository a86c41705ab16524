//! `/v1/responses`: chats in the form of OpenAI's newer API. Nothing is stored.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use crate::ask::{Opened, ask, open};
use crate::error::{ApiError, json_response};
use crate::reply::responses::{ResponseStream, whole};
use crate::reply::stream;
use crate::request::responses::read;
use crate::state::Shared;

pub(super) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let options = &shared.options;
    let Opened { fields, asked_for, model, body } = open(&shared, request).await?;
    let (chat, repeated) = read(fields, &model, options)?;
    let response = ResponseStream::new(asked_for.unwrap_or_else(|| model.name.clone()), repeated);
    let streams = chat.generation.streams.unwrap_or(false);
    let run = ask(&shared, model, chat, body).await?;
    if streams {
        return stream::respond(run, response, options.limits.ping_time).await;
    }
    Ok(json_response(StatusCode::OK, &whole(run, response).await?))
}
