//! Requests by chance on every route, without sockets: each has an answer, and no fault of a client is one of the server.
//!
//! `PROPTEST_CASES=1000000 cargo test -p oarlock-serve --lib routes::tests` asks a million of each kind.

mod backend;
mod mutation;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::Value;

use self::backend::Exact;
use self::mutation::{Damage, damages};
use super::router;
use crate::hosts::Hosts;
use crate::options::Options;
use crate::state::Shared;

/// Every route with a body, and a request that uses most of its fields.
const ROUTES: [(&str, &str); 14] = [
    ("/v1/chat/completions", include_str!("tests/chat.json")),
    ("/v1/chat/completions", include_str!("tests/chat_stream.json")),
    ("/v1/completions", include_str!("tests/completion.json")),
    (
        "/completions",
        r#"{"prompt": [[97, 98], [99]], "stream": true, "echo": true, "logprobs": 1, "n": 2, "stop": "z"}"#,
    ),
    ("/v1/responses", include_str!("tests/response.json")),
    (
        "/responses",
        r#"{"input": "a", "stream": true, "instructions": "b", "max_output_tokens": 2, "metadata": {"a": "b"}}"#,
    ),
    ("/v1/messages", include_str!("tests/message.json")),
    ("/v1/messages/count_tokens", r#"{"messages": [{"role": "user", "content": "a"}], "system": "b"}"#),
    ("/v1/embeddings", r#"{"input": ["a", "bc"], "encoding_format": "base64", "dimensions": 2}"#),
    ("/v1/score/evaluation", r#"{"model": "exact", "messages": ["a", "b"], "max_length": 2}"#),
    ("/tokenize", r#"{"content": "aé", "with_pieces": true, "add_special": true}"#),
    (
        "/v1/tokenize",
        r#"{"messages": [{"role": "user", "content": ["a"]}], "with_pieces": false, "parse_special": true}"#,
    ),
    ("/detokenize", r#"{"tokens": [97, 255.0, 0]}"#),
    (
        "/apply-template",
        r#"{"messages": [{"role": "system", "content": "a"}], "chat_template_kwargs": {"a": [1]}}"#,
    ),
];

/// As many as `PROPTEST_CASES` says, or two thousand.
fn cases() -> ProptestConfig {
    let said = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(said.unwrap_or(2000)) }
}

/// All routes, and the runtime that they need.
struct Site {
    runtime: tokio::runtime::Runtime,
    routes: TowerToHyperService<Router>,
}

impl Site {
    fn new() -> Site {
        let hosts = Hosts::new(SocketAddr::from(([127, 0, 0, 1], 8000)), &[]);
        let shared = Arc::new(Shared::new(Arc::new(Exact), Options::local(), hosts));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        Site { runtime, routes: TowerToHyperService::new(router(&shared)) }
    }

    /// The status, whether it is a stream, and all of the answer.
    fn ask(&self, path: &str, body: &[u8]) -> (u16, bool, Vec<u8>) {
        let head = Request::post(path).header(header::HOST, "localhost");
        let head = head.header(header::CONTENT_TYPE, "application/json");
        let request = head.body(Body::from(body.to_vec())).unwrap();
        self.runtime.block_on(async {
            let response = self.routes.call(request).await.unwrap();
            let (head, mut body) = response.into_parts();
            assert!(head.headers.contains_key("x-request-id"));
            let kind = head.headers[header::CONTENT_TYPE].to_str().unwrap();
            let is_stream = kind.starts_with("text/event-stream");
            assert!(is_stream || kind == "application/json", "{kind}");
            let mut bytes = Vec::new();
            while let Some(frame) =
                std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
            {
                bytes.extend_from_slice(frame.unwrap().data_ref().unwrap());
            }
            (head.status.as_u16(), is_stream, bytes)
        })
    }

    /// The status of an answer whose form is the right one.
    fn status(&self, path: &str, body: &[u8]) -> u16 {
        let (status, is_stream, bytes) = self.ask(path, body);
        let text = String::from_utf8(bytes).unwrap();
        if is_stream {
            assert_eq!(status, 200);
            check_stream(&text);
            return status;
        }
        let reply: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text:?}"));
        match status {
            200 => assert!(reply.is_object() && reply.get("error").is_none_or(Value::is_null), "{text}"),
            400 | 404 | 413 => check_error(path, &reply),
            _ => panic!("{status}: {text}"),
        }
        let is_json = serde_json::from_slice::<Value>(body).is_ok_and(|value| value.is_object());
        assert!(is_json || status != 200, "what is no JSON object is answered: {text}");
        status
    }
}

/// An error has the form of the API of its route, and repeats little of what the client said.
fn check_error(path: &str, reply: &Value) {
    let error = &reply["error"];
    let message = error["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty() && message.len() < 1000 && error["type"].is_string(), "{reply}");
    if path.starts_with("/v1/messages") {
        assert_eq!(reply["type"], "error", "{reply}");
    } else {
        let is_word = |name: &str| error.get(name).is_some_and(|value| value.is_string() || value.is_null());
        assert!(is_word("param") && is_word("code"), "{reply}");
    }
}

/// A stream is events of JSON without an error, and its last one says that it is the last.
fn check_stream(text: &str) {
    let frames: Vec<&str> = text.strip_suffix("\n\n").unwrap().split("\n\n").collect();
    for frame in &frames {
        let data = frame.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        if data != "[DONE]" {
            let value: Value = serde_json::from_str(data).unwrap();
            assert!(value.get("error").is_none() && value["type"] != "error", "{data}");
        }
    }
    let last = frames[frames.len() - 1];
    let ends =
        ["data: [DONE]", "event: message_stop", "event: response.completed", "event: response.incomplete"];
    assert!(ends.iter().any(|end| last.starts_with(end)), "{last}");
}

/// Asks as long as there are cases, and says how many of them had each kind of answer.
fn run<S: Strategy>(strategy: S, body: impl Fn(&S::Value) -> (usize, Vec<u8>)) -> (usize, usize) {
    let site = Site::new();
    let (n_answered, n_refused) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let ask = |value| {
        let (route, body) = body(&value);
        let n = if site.status(ROUTES[route].0, &body) == 200 { &n_answered } else { &n_refused };
        n.set(n.get() + 1);
        Ok(())
    };
    TestRunner::new(cases()).run(&strategy, ask).unwrap_or_else(|error| panic!("{error}"));
    (n_answered.get(), n_refused.get())
}

#[test]
fn whole_requests_are_answered() {
    let site = Site::new();
    for (path, body) in ROUTES {
        assert_eq!(site.status(path, body.as_bytes()), 200, "{path}: {body}");
    }
}

#[test]
fn bytes_by_chance_are_refused() {
    let any_bytes = proptest::collection::vec(any::<u8>(), 0..200);
    // Of the characters of JSON something comes that reaches further.
    let json = "[\\[\\]{}\":,\\\\0-9eE+.a-u -]{0,60}".prop_map(String::into_bytes);
    let object = "\\{\"(model|messages|prompt|input|tokens|content)\":[\\[\\]{}\",0-9a-f]{0,20}\\}";
    let bodies = prop_oneof![any_bytes, json, object.prop_map(String::into_bytes)];
    let (_, n_refused) = run((0..ROUTES.len(), bodies), Clone::clone);
    assert!(n_refused > 0);
}

#[test]
fn damaged_requests_are_answered_or_refused() {
    let strategy = (0..ROUTES.len(), damages());
    let body = |(route, damages): &(usize, Vec<Damage>)| (*route, mutation::damaged(*route, damages));
    let (n_answered, n_refused) = run(strategy, body);
    // Some damage changes nothing that matters, and most is found.
    assert!(n_answered * 20 > n_refused && n_refused * 4 > n_answered, "{n_answered} and {n_refused}");
}
