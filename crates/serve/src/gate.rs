//! What every request passes before its route: who asks, by which name, from which page, and whether the server still takes
//! requests. Nothing of a body has been read here.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use subtle::{Choice, ConstantTimeEq};

use crate::error::ApiError;
use crate::ids;
use crate::options::ApiKey;
use crate::state::{Phase, Shared};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id of a client that is repeated.
const LONGEST_ID: usize = 128;

/// Lets a request through to its route, and names the answer.
pub(crate) async fn pass(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let origin = allowed_origin(&shared, request.headers());
    let mut response = match check(&shared, &request, origin.is_some()) {
        Ok(()) if request.method() == Method::OPTIONS && origin.is_some() => preflight(),
        Ok(()) => next.run(request).await,
        Err(error) => refusal(request.uri().path(), &error),
    };
    let status = response.status();
    if status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE {
        shared.metrics.refused();
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
    }
    response
}

/// An error in the form of the API to which a path belongs.
pub(crate) fn refusal(path: &str, error: &ApiError) -> Response {
    let is_anthropic = matches!(path, "/v1/messages" | "/v1/messages/count_tokens");
    error.response(&if is_anthropic { error.anthropic_body() } else { error.body() })
}

/// That of the client if it is a plain word, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_word = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=LONGEST_ID).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    let new = || HeaderValue::from_str(&ids::name("req_")).unwrap_or(HeaderValue::from_static("req_"));
    headers.get(REQUEST_ID).filter(is_word).cloned().unwrap_or_else(new)
}

/// The origin of a request, if the options allow it.
fn allowed_origin(shared: &Shared, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let is_allowed = |allowed: &String| allowed.as_bytes() == origin.as_bytes();
    shared.options.allowed_origins.iter().any(is_allowed).then(|| origin.clone())
}

fn check(shared: &Shared, request: &Request, has_allowed_origin: bool) -> Result<(), ApiError> {
    let headers = request.headers();
    let is_health = matches!(request.uri().path(), "/health" | "/v1/health");
    let is_preflight = request.method() == Method::OPTIONS && has_allowed_origin;
    if shared.options.api_keys.is_empty() {
        check_place(shared, headers, has_allowed_origin)?;
    } else if !is_health && !is_preflight && !shows_key(headers, &shared.options.api_keys) {
        let message = "Invalid API key.";
        return Err(ApiError::refused(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message));
    }
    match shared.phase() {
        Phase::Open => Ok(()),
        Phase::Draining | Phase::Over => Err(ApiError::unavailable("The server is ending.")),
    }
}

/// Without a key the name by which the server is addressed has to be its own, and a page has to be on it.
fn check_place(shared: &Shared, headers: &HeaderMap, has_allowed_origin: bool) -> Result<(), ApiError> {
    let forbidden = |message: &str| ApiError::refused(StatusCode::FORBIDDEN, None, message);
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if !text(header::HOST).is_some_and(|host| shared.hosts.has(host)) {
        return Err(forbidden("The server is not known by this name. Allow it, or set an API key."));
    }
    match text(header::ORIGIN) {
        Some(origin) if !has_allowed_origin && !shared.hosts.has_origin(origin) => {
            Err(forbidden("Pages of this origin may not use the server."))
        }
        _ => Ok(()),
    }
}

/// Whether a request shows one of the keys, as OpenAI's clients do or as Anthropic's. How long this takes says nothing of
/// where a wrong key differs, nor of which key is right.
fn shows_key(headers: &HeaderMap, keys: &[ApiKey]) -> bool {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(b"Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
    });
    let shown = bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes));
    let shown = shown.unwrap_or_default().trim_ascii();
    let same = keys.iter().map(|key| key.bytes().ct_eq(shown));
    same.fold(Choice::from(0), |any, is| any | is).into()
}

/// What a browser asks before a page of an allowed origin may send something.
fn preflight() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    let rows = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type, x-api-key, x-request-id"),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    for (name, value) in rows {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))])
    }

    #[test]
    fn any_of_the_keys_opens() {
        let keys: Vec<ApiKey> = ["first", "second"].iter().filter_map(|key| ApiKey::new(key)).collect();
        let right =
            [("authorization", "Bearer first"), ("authorization", "bearer second "), ("x-api-key", "second")];
        for (name, value) in right {
            assert!(shows_key(&shown(name, value), &keys), "{name}: {value}");
        }
        let wrong = [
            ("authorization", "Bearer firs"),
            ("authorization", "Bearer first1"),
            ("authorization", "Basic first"),
            ("authorization", "Bearer"),
            ("authorization", "Bearer "),
            ("x-api-key", ""),
            ("host", "first"),
        ];
        for (name, value) in wrong {
            assert!(!shows_key(&shown(name, value), &keys), "{name}: {value}");
        }
        for key in ["", "with space", "schlüssel", "tab\t"] {
            assert_eq!(ApiKey::new(key), None, "{key:?}");
        }
        assert_eq!(format!("{:?}", keys[0]), "ApiKey(…)");
    }
}
