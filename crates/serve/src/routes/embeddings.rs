//! `/v1/embeddings`: texts as vectors.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::ask::{Opened, open};
use crate::backend::Backend;
use crate::error::{ApiError, json_response};
use crate::request::input::{Input, inputs};
use crate::run::check_length;
use crate::state::Shared;

pub(super) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let limits = &shared.options.limits;
    let Opened { mut fields, asked_for, model, body } = open(&shared, request).await?;
    let input = fields.take("input").ok_or_else(|| fields.missing("input"))?;
    let inputs = inputs(input, "input", limits.n_texts)?;
    let is_base64 = match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            return Err(ApiError::field("encoding_format", "`encoding_format` is `float` or `base64`."));
        }
    };
    let wanted = fields.integer("dimensions", 1..=i64::from(u32::MAX))?;
    let name = model.name.clone();
    let ids = shared
        .compute(&body, move |backend| {
            let of = |input| match input {
                Input::Text(text) => backend.tokenize(&name, &text, true),
                Input::Ids(ids) => Ok(ids),
            };
            inputs.into_iter().map(of).collect::<Result<Vec<_>, _>>()
        })
        .await?;
    for ids in &ids {
        check_length(ids, model.context_length.saturating_add(1))?;
    }
    let n_tokens: usize = ids.iter().map(Vec::len).sum();
    let name = model.name.clone();
    let vectors = shared.compute_alone(&body, move |backend: &dyn Backend| backend.embed(&name, ids)).await?;
    if let (Some(wanted), Some(vector)) = (wanted, vectors.first())
        && usize::try_from(wanted) != Ok(vector.len())
    {
        let message = format!("The embeddings of `{}` have {} dimensions.", model.name, vector.len());
        return Err(ApiError::unsupported("dimensions", message));
    }
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding = if is_base64 { json!(encoded(vector)) } else { json!(vector) };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    let reply = json!({
        "object": "list",
        "data": data.collect::<Value>(),
        "model": asked_for.unwrap_or(model.name),
        "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
    });
    Ok(json_response(StatusCode::OK, &reply))
}

/// As little-endian f32 in base64, which OpenAI's Python client asks for.
fn encoded(vector: &[f32]) -> String {
    STANDARD.encode(vector.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}
