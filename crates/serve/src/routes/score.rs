//! `/v1/score/evaluation`: what a reward model thinks of texts, as LLaMA-Factory's server says it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::ask::{Opened, open};
use crate::backend::Backend;
use crate::error::{ApiError, json_response};
use crate::fields::{too_many, wrong};
use crate::ids;
use crate::state::Shared;

pub(super) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let limits = &shared.options.limits;
    let Opened { mut fields, asked_for, model, body } = open(&shared, request).await?;
    let list = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if list.is_empty() {
        return Err(ApiError::field("messages", "`messages` is empty."));
    }
    if list.len() > limits.n_texts {
        return Err(too_many("messages", list.len(), limits.n_texts));
    }
    let text = |value| match value {
        Value::String(text) => Ok(text),
        other => Err(wrong("messages", "a list of texts", &other)),
    };
    let texts: Vec<String> = list.into_iter().map(text).collect::<Result<_, _>>()?;
    let longest = fields.integer("max_length", 1..=i64::from(u32::MAX))?;
    // What does not fit is cut off, as LLaMA-Factory does.
    let longest =
        longest.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX).min(model.context_length);
    let name = model.name.clone();
    let scores = shared
        .compute_alone(&body, move |backend: &dyn Backend| {
            let mut ids = texts
                .iter()
                .map(|text| backend.tokenize(&name, text, false))
                .collect::<Result<Vec<_>, _>>()?;
            ids.iter_mut().for_each(|ids| ids.truncate(longest));
            backend.score(&name, ids)
        })
        .await?;
    let reply = json!({
        "id": ids::name("scoreval-"),
        "object": "score.evaluation",
        "model": asked_for.unwrap_or(model.name),
        "scores": scores,
    });
    Ok(json_response(StatusCode::OK, &reply))
}
