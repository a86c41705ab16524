//! Bodies of requests: read within their limits, and made into JSON of limited size.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::Value;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::options::Limits;

/// From so many bytes on a body is large.
const LARGE_BYTES: usize = 256 << 10;

/// How many bytes of bodies the server holds at the moment.
#[derive(Debug, Default)]
pub(crate) struct BodyBytes(AtomicUsize);

/// The part of a body in all these bytes, given back when it is dropped: when what was said in it is tokens, which are few.
#[derive(Debug)]
pub(crate) struct Share {
    all: Arc<BodyBytes>,
    n_bytes: usize,
}

impl Share {
    /// Whether the body is large: its tokens may take seconds.
    pub(crate) fn is_large(&self) -> bool {
        self.n_bytes >= LARGE_BYTES
    }

    /// Takes some more, unless all bodies together then have more than `most`. Large ones leave a quarter to the others.
    fn grow(&mut self, n_bytes: usize, most: usize) -> Result<(), ApiError> {
        let before = self.all.0.fetch_add(n_bytes, Ordering::Relaxed);
        self.n_bytes += n_bytes;
        let most = if self.is_large() { most - most / 4 } else { most };
        match before.saturating_add(n_bytes) <= most {
            true => Ok(()),
            false => Err(ApiError::unavailable("Too many large requests come at the same time.")),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.n_bytes, Ordering::Relaxed);
    }
}

/// The JSON object that a request has as its body, and its share of the memory for all bodies.
pub(crate) async fn read_object(
    request: Request,
    all: &Arc<BodyBytes>,
    limits: &Limits,
) -> Result<(Fields, Arc<Share>), ApiError> {
    check_type(request.headers())?;
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced: Option<u64> = announced.and_then(|value| value.parse().ok());
    if announced.is_some_and(|length| length > limits.body_bytes as u64) {
        return Err(too_large(limits));
    }
    let mut share = Share { all: Arc::clone(all), n_bytes: 0 };
    let reading = read(request.into_body(), &mut share, limits);
    let bytes = timeout(limits.body_time, reading).await.unwrap_or_else(|_| {
        let message = format!("The body took longer than {} s.", limits.body_time.as_secs_f32());
        Err(ApiError::refused(StatusCode::REQUEST_TIMEOUT, None, message))
    })?;
    Ok((Fields::of(parse(&bytes, limits)?, "")?, Arc::new(share)))
}

fn too_large(limits: &Limits) -> ApiError {
    let message = format!("The body is larger than {} bytes.", limits.body_bytes);
    ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, None, message)
}

/// Only JSON, which a page of a browser sends nowhere without asking first; what forms send could come from any page.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let unsupported = |message| ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, message);
    let text = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    let media = text(header::CONTENT_TYPE).unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !media.eq_ignore_ascii_case("application/json") {
        return Err(unsupported("The body is JSON, with `Content-Type: application/json`."));
    }
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(unsupported("The body is not compressed.")),
        _ => Ok(()),
    }
}

async fn read(mut body: Body, share: &mut Share, limits: &Limits) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| ApiError::invalid("The body ended before its end."))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limits.body_bytes {
            return Err(too_large(limits));
        }
        share.grow(data.len(), limits.all_bodies_bytes)?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// JSON whose values fit into memory: a body of brackets takes fifty times its size.
fn parse(bytes: &[u8], limits: &Limits) -> Result<Value, ApiError> {
    let (n_values, depth) = measure(bytes);
    if n_values > limits.n_values {
        return Err(ApiError::invalid(format!("The body has more than {} values.", limits.n_values)));
    }
    if depth > limits.depth {
        return Err(ApiError::invalid(format!("The body is nested more than {} levels deep.", limits.depth)));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        ApiError::invalid(format!("The body is not JSON: see line {line}, column {column}."))
    })
}

/// At most how many values a JSON text has, and how deeply they are nested.
fn measure(bytes: &[u8]) -> (usize, usize) {
    let (mut n_values, mut depth, mut deepest) = (1_usize, 0_usize, 0);
    let (mut is_string, mut is_escaped) = (false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            _ if is_string => {}
            b',' => n_values += 1,
            b'[' | b'{' => {
                n_values += 1;
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    (n_values, deepest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_levels_are_counted_outside_of_strings() {
        assert_eq!(measure(b"null"), (1, 0));
        assert_eq!(measure(br#"{"a": [1, 2, {"b": "[[,\"[,"}]}"#), (6, 3));
        assert_eq!(measure(br#""\\",[]"#), (3, 1));
    }

    #[test]
    fn a_body_of_brackets_is_refused_before_it_takes_memory() {
        let limits = Limits::STANDARD;
        let wide = format!("[{}0]", "[],".repeat(limits.n_values));
        let deep = format!("{}{}", "[".repeat(limits.depth + 1), "]".repeat(limits.depth + 1));
        for body in [wide, deep] {
            assert!(parse(body.as_bytes(), &limits).is_err());
        }
        assert!(parse("[".repeat(limits.depth).as_bytes(), &limits).is_err());
        assert_eq!(parse(b"[1]", &limits), Ok(serde_json::json!([1])));
    }
}
