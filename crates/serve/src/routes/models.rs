//! `/v1/models`: the models that there are. Adapters are among them.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::backend::Model;
use crate::error::{ApiError, json_response};
use crate::state::Shared;

pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Response {
    let data: Vec<Value> = shared.backend.models().iter().map(entry).collect();
    json_response(StatusCode::OK, &json!({ "object": "list", "data": data }))
}

/// Names may have slashes. A path that is no text names nothing.
pub(super) async fn one(
    State(shared): State<Arc<Shared>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = path.map_err(|_| ApiError::no_model("�"))?;
    let found = shared.backend.models().into_iter().find(|model| model.name == name);
    let model = found.ok_or_else(|| ApiError::no_model(&name))?;
    Ok(json_response(StatusCode::OK, &entry(&model)))
}

fn entry(model: &Model) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "oarlock",
        "parent": model.parent,
        "max_model_len": model.context_length,
    })
}
