//! An answer as a stream of server-sent events: as it comes, with signs of life while nothing comes.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body::{Body as HttpBody, Frame};
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::delta::Delta;
use crate::error::ApiError;
use crate::run::Run;

/// How a stream is written in one of the APIs.
pub(crate) trait Wire: Send + Unpin + 'static {
    /// What stands before the first token.
    fn begin(&mut self, out: &mut Vec<u8>);
    /// What is new of an answer, and where it is the last of all, the end.
    fn delta(&mut self, delta: Delta, out: &mut Vec<u8>);
    /// A sign of life.
    fn ping(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b": ping\n\n");
    }
    /// The end of a stream that has failed after its begin.
    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>);
}

/// How much is written at once.
const PIECE_BYTES: usize = 16 << 10;

/// A stream that is written while its sequences are computed. Dropping it cancels them.
struct Stream<W> {
    run: Option<Run>,
    wire: W,
    first: Option<Delta>,
    has_begun: bool,
    ping: Pin<Box<Sleep>>,
    ping_time: Duration,
}

/// The answer to a request for a stream. What fails before anything has come is an error with its own status; so this waits
/// for the first sign of the sequences, but no longer than a proxy would.
pub(crate) async fn respond(
    mut run: Run,
    wire: impl Wire,
    ping_time: Duration,
) -> Result<Response, ApiError> {
    let first = match timeout(ping_time, run.next()).await {
        Ok(first) => first?,
        Err(_) => None,
    };
    let ping = Box::pin(sleep(ping_time));
    let stream = Stream { run: Some(run), wire, first, has_begun: false, ping, ping_time };
    let mut response = Response::new(Body::new(stream));
    let rows = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Nginx would keep the pieces back.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    for (name, value) in rows {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

impl<W: Wire> HttpBody for Stream<W> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let Some(run) = &mut this.run else { return Poll::Ready(None) };
        let mut out = Vec::new();
        if !this.has_begun {
            this.has_begun = true;
            this.wire.begin(&mut out);
        }
        let mut is_over = false;
        if let Some(first) = this.first.take() {
            is_over = first.totals.is_some();
            this.wire.delta(first, &mut out);
        }
        while !is_over && out.len() < PIECE_BYTES {
            match run.poll_next(context) {
                Poll::Ready(Ok(Some(delta))) => {
                    is_over = delta.totals.is_some();
                    this.wire.delta(delta, &mut out);
                }
                Poll::Ready(Ok(None)) => is_over = true,
                Poll::Ready(Err(error)) => {
                    is_over = true;
                    this.wire.failed(&error, &mut out);
                }
                Poll::Pending => break,
            }
        }
        if is_over {
            this.run = None;
        } else if out.is_empty() {
            if this.ping.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            this.wire.ping(&mut out);
        }
        this.ping.as_mut().reset(Instant::now() + this.ping_time);
        if out.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(out.into()))))
    }

    /// Known together with the last piece, so that the body ends with it: clients wait only a moment for its end.
    fn is_end_stream(&self) -> bool {
        self.run.is_none()
    }
}

/// Writes an event that has data alone.
pub(crate) fn data(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    // Writing a value into memory does not fail: its keys are strings. It has no line ends.
    _ = serde_json::to_writer(&mut *out, value);
    out.extend_from_slice(b"\n\n");
}

/// Writes an event that has a name, which its data repeats as `type`.
pub(crate) fn event(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(value["type"].as_str().unwrap_or("message").as_bytes());
    out.push(b'\n');
    data(value, out);
}

/// Writes the event that says that nothing more comes.
pub(crate) fn done(out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: [DONE]\n\n");
}
