//! `/tokenize`, `/detokenize` and `/apply-template`, in the forms of llama.cpp and of vLLM: what a model sees of a text.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::body::read_object;
use crate::error::{ApiError, json_response};
use crate::request::chat::conversation;
use crate::request::input::ids;
use crate::state::Shared;

/// Of `content` (or `prompt`), or of `messages`.
pub(super) async fn tokenize(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut fields, body) = read_object(request, &shared.bodies, &shared.options.limits).await?;
    let model = shared.model(fields.string("model")?.as_deref())?;
    if fields.boolean("parse_special")? == Some(false) {
        let message = "The names of special tokens are always these tokens.";
        return Err(ApiError::unsupported("parse_special", message));
    }
    let adds_special = fields.boolean("add_special")?.or(fields.boolean("add_special_tokens")?);
    let has_pieces = fields.boolean("with_pieces")?.unwrap_or(false);
    let text = fields.string("content")?.or(fields.string("prompt")?);
    let name = model.name.clone();
    let (ids, pieces) = match text {
        Some(text) => {
            let work = move |backend: &dyn crate::backend::Backend| {
                let ids = backend.tokenize(&name, &text, adds_special.unwrap_or(false))?;
                let pieces = if has_pieces { backend.detokenize(&name, &ids)? } else { Vec::new() };
                Ok((ids, pieces))
            };
            shared.compute(&body, work).await?
        }
        None => {
            let (conversation, _) = conversation(&mut fields, &shared.options)?;
            let work = move |backend: &dyn crate::backend::Backend| {
                let ids = backend.render(&name, &conversation)?.ids;
                let pieces = if has_pieces { backend.detokenize(&name, &ids)? } else { Vec::new() };
                Ok((ids, pieces))
            };
            shared.compute(&body, work).await?
        }
    };
    let n_ids = ids.len();
    let tokens: Value = match has_pieces {
        true => ids
            .into_iter()
            .zip(pieces)
            .map(|(id, bytes)| json!({ "id": id, "piece": piece(bytes) }))
            .collect(),
        false => json!(ids),
    };
    let reply = json!({ "tokens": tokens, "count": n_ids, "max_model_len": model.context_length });
    Ok(json_response(StatusCode::OK, &reply))
}

/// The text of a token, or its bytes where they are no text.
fn piece(bytes: Vec<u8>) -> Value {
    String::from_utf8(bytes).map_or_else(|error| json!(error.as_bytes()), Value::String)
}

pub(super) async fn detokenize(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut fields, body) = read_object(request, &shared.bodies, &shared.options.limits).await?;
    let model = shared.model(fields.string("model")?.as_deref())?;
    let list = fields.list("tokens")?.ok_or_else(|| fields.missing("tokens"))?;
    let ids = ids(&list, "tokens")?;
    let bytes = shared.compute(&body, move |backend| backend.detokenize(&model.name, &ids)).await?.concat();
    let text = String::from_utf8_lossy(&bytes);
    // llama.cpp's name, and vLLM's.
    Ok(json_response(StatusCode::OK, &json!({ "content": text, "prompt": text })))
}

pub(super) async fn apply_template(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut fields, body) = read_object(request, &shared.bodies, &shared.options.limits).await?;
    let model = shared.model(fields.string("model")?.as_deref())?;
    let (conversation, _) = conversation(&mut fields, &shared.options)?;
    let prompt = shared.compute(&body, move |backend| backend.render(&model.name, &conversation)).await?;
    Ok(json_response(StatusCode::OK, &json!({ "prompt": prompt.text })))
}
