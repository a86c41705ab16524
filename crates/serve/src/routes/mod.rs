//! The routes, and what answers them.

mod chat;
mod completions;
mod embeddings;
mod messages;
mod models;
mod responses;
mod score;
#[cfg(test)]
mod tests;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use serde_json::json;

use crate::error::{ApiError, json_response};
use crate::gate;
use crate::state::Shared;

/// All routes, behind the gate.
pub(crate) fn router(shared: &Arc<Shared>) -> Router {
    let mut router = Router::new();
    let both: [(&str, MethodRouter<Arc<Shared>>); 11] = [
        ("/health", get(health)),
        ("/metrics", get(metrics)),
        ("/models", get(models::list)),
        ("/models/{*id}", get(models::one)),
        ("/chat/completions", post(chat::answer)),
        ("/completions", post(completions::answer)),
        ("/responses", post(responses::answer)),
        ("/embeddings", post(embeddings::answer)),
        ("/tokenize", post(tokens::tokenize)),
        ("/detokenize", post(tokens::detokenize)),
        ("/apply-template", post(tokens::apply_template)),
    ];
    for (path, method) in both {
        router = router.route(path, method.clone()).route(&format!("/v1{path}"), method);
    }
    router
        .route("/v1/messages", post(messages::answer))
        .route("/v1/messages/count_tokens", post(messages::count))
        .route("/v1/score/evaluation", post(score::answer))
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .layer(from_fn_with_state(Arc::clone(shared), gate::pass))
        .with_state(Arc::clone(shared))
}

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    if shared.backend.is_ready() {
        return json_response(StatusCode::OK, &json!({ "status": "ok" }));
    }
    let error = json!({ "code": 503, "message": "Loading model", "type": "unavailable_error" });
    json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": error }))
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let text = shared.metrics.text(shared.backend.numbers());
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn unknown() -> ApiError {
    ApiError::refused(StatusCode::NOT_FOUND, Some("unknown_url"), "There is no such route.")
}

async fn other_method(uri: Uri) -> Response {
    let error = ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, None, "This route has another method.");
    gate::refusal(uri.path(), &error)
}
