//! Streams of chats, byte by byte.

use std::io::Read;
use std::time::Duration;

use oarlock_serve::{Limits, Options};
use serde_json::{Value, json};

use crate::client::{Reply, Server, ask, ask_with};
use crate::fake::Fake;

fn stream(server: &Server, content: &str, fields: Value) -> Reply {
    let mut body = ask_with(content, fields);
    body["stream"] = json!(true);
    server.chat(&body)
}

/// The events with what differs from run to run in a fixed form.
fn fixed(text: &str) -> String {
    let event: Value =
        serde_json::from_str(text.split("\n\n").next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
    let (id, created) = (event["id"].as_str().unwrap(), event["created"].to_string());
    text.replace(id, "ID").replace(&created, "0")
}

#[test]
fn a_stream_is_these_bytes() {
    let server = Server::plain();
    let reply = stream(&server, "say Hi you", json!({ "stream_options": { "include_usage": false } }));
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    let head = r#"data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"fake","system_fingerprint":"fp_fake","choices":[{"index":0,"delta":"#;
    let rest = |finish: &str| format!(r#","logprobs":null,"finish_reason":{finish}}}]"#);
    let text = fixed(&reply.text());
    let (text, timings) = text.split_once(r#","timings":"#).unwrap();
    let expected = format!(
        "{head}{}{}}}\n\n{head}{}{}}}\n\n{head}{}{}}}\n\n{head}{}{}",
        r#"{"role":"assistant","content":""}"#,
        rest("null"),
        r#"{"content":"Hi"}"#,
        rest("null"),
        r#"{"content":" you"}"#,
        rest("null"),
        "{}",
        rest("\"stop\""),
    );
    assert_eq!(text, expected);
    assert!(timings.ends_with("}}\n\ndata: [DONE]\n\n"), "{timings}");
}

#[test]
fn usage_comes_last_where_it_is_asked_for() {
    let server = Server::plain();
    let (events, is_done) =
        stream(&server, "say a b", json!({ "stream_options": { "include_usage": true } })).events();
    assert!(is_done);
    let (last, others) = events.split_last().unwrap();
    assert!(others.iter().all(|event| event.get("usage") == Some(&Value::Null)));
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 2);
    assert!(last["timings"].is_object());
}

#[test]
fn nothing_of_a_stop_string_or_half_a_character_is_shown() {
    let server = Server::plain();
    let texts = |content: &str, stop: &str| -> Vec<String> {
        let (events, _) = stream(&server, content, json!({ "stop": stop })).events();
        let text = |event: &Value| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
        events.iter().filter_map(text).filter(|text| !text.is_empty()).collect()
    };
    assert_eq!(texts("say one STO P STOP two", "STOP"), ["one", " STO P", " "]);
    assert_eq!(texts("say 你 😀!", "zz"), ["你", " 😀", "!"]);
}

#[test]
fn calls_and_thoughts_come_in_their_fields() {
    let server = Server::plain();
    let content = "say <think>hm so</think>\n\n<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}</tool_call>";
    let tools = json!([{ "type": "function", "function": { "name": "weather" } }]);
    let (events, is_done) = stream(&server, content, json!({ "tools": tools })).events();
    assert!(is_done);
    let deltas: Vec<Value> = events.iter().map(|event| event["choices"][0]["delta"].clone()).collect();
    let id = &deltas[3]["tool_calls"][0]["id"];
    assert!(id.as_str().is_some_and(|id| id.starts_with("call_")));
    let begin = json!({ "index": 0, "id": id, "type": "function", "function": { "name": "weather", "arguments": "" } });
    let rest = json!({ "index": 0, "function": { "arguments": "{\"city\":\"Bonn\"}" } });
    assert_eq!(
        deltas,
        [
            json!({ "role": "assistant", "content": "" }),
            json!({ "reasoning_content": "hm" }),
            json!({ "reasoning_content": " so" }),
            json!({ "tool_calls": [begin] }),
            json!({ "tool_calls": [rest] }),
            json!({}),
        ]
    );
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn every_token_has_its_log_probability_once() {
    let server = Server::plain();
    let fields = json!({ "logprobs": true, "stop": "three" });
    let (events, _) = stream(&server, "say one thr 你 x", fields).events();
    let mut bytes = Vec::new();
    let mut text = String::new();
    for event in &events {
        text += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        for token in event["choices"][0]["logprobs"]["content"].as_array().into_iter().flatten() {
            bytes.extend(serde_json::from_value::<Vec<u8>>(token["bytes"].clone()).unwrap());
        }
    }
    assert_eq!(text, "one thr 你 x");
    assert_eq!(bytes, text.as_bytes());
}

#[test]
fn choices_are_interleaved() {
    let fake = Fake { delay: Duration::from_millis(5), ..Fake::new() };
    let server = Server::start(fake, Options::local());
    let (events, is_done) = stream(&server, "count 12", json!({ "n": 2, "seed": 1 })).events();
    assert!(is_done);
    let indices: Vec<u64> =
        events.iter().map(|event| event["choices"][0]["index"].as_u64().unwrap()).collect();
    assert_eq!(indices.iter().filter(|index| **index == 0).count(), 14);
    assert_eq!(indices.iter().filter(|index| **index == 1).count(), 14);
    let n_changes = indices.windows(2).filter(|two| two[0] != two[1]).count();
    assert!(n_changes > 4, "{indices:?}");
    // Together they are what comes as a whole.
    let whole = server.chat(&ask_with("count 12", json!({ "n": 2, "seed": 1 }))).ok();
    for choice in 0..2_u64 {
        let of_choice = events.iter().filter(|event| event["choices"][0]["index"] == choice);
        let text: String =
            of_choice.filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, whole["choices"][choice as usize]["message"]["content"].as_str().unwrap());
    }
}

#[test]
fn a_failure_after_the_start_is_an_event() {
    let server = Server::plain();
    let reply = stream(&server, "fail 2", json!({}));
    assert_eq!(reply.status, 200);
    let (events, is_done) = reply.events();
    let error = &events.last().unwrap()["error"];
    assert!(error["message"].as_str().unwrap().contains("out of memory"));
    assert_eq!((&error["type"], is_done), (&json!("server_error"), false));
    let reply = stream(&server, "misfit 2", json!({}));
    let (events, is_done) = reply.events();
    let error = &events.last().unwrap()["error"];
    assert_eq!((&error["type"], is_done), (&json!("invalid_request_error"), false));
    // What is wrong before the start has a status.
    stream(&server, "refuse", json!({})).error(400);
}

#[test]
fn a_stream_without_tokens_is_kept_alive() {
    let mut options = Options::local();
    options.limits = Limits { ping_time: Duration::from_millis(30), ..Limits::STANDARD };
    let server = Server::start(Fake::new(), options);
    let mut body = ask("hang");
    body["stream"] = json!(true);
    let mut stream = server.begin("/v1/chat/completions", &body);
    let mut bytes = Vec::new();
    while bytes.windows(8).filter(|eight| eight == b": ping\n\n").count() < 3 {
        let mut piece = [0; 512];
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0);
        bytes.extend_from_slice(&piece[..n]);
    }
    // The head and the role come before the first token does.
    assert!(String::from_utf8_lossy(&bytes).contains("\"role\":\"assistant\""));
}

#[test]
fn the_body_ends_at_once() {
    let server = Server::plain();
    let mut body = ask("say a");
    body["stream"] = json!(true);
    let text = body.to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let mut stream = server.send(format!("{head}Content-Length: {}\r\n\r\n{text}", text.len()).as_bytes());
    let mut bytes = Vec::new();
    // The connection stays open, so that only the last chunk can end the body.
    while !bytes.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n") {
        let mut piece = [0; 512];
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&piece[..n]);
    }
}

#[test]
fn chats_stream_by_default_where_minimind_would() {
    let options = Options { streams_by_default: true, accepts_any_model: true, ..Options::local() };
    let server = Server::start(Fake::new(), options);
    let reply = server.chat(&ask_with("say a", json!({ "model": "minimind", "open_thinking": true })));
    let (events, is_done) = reply.events();
    assert!(is_done);
    assert_eq!(events[0]["model"], "minimind");
    assert_eq!(server.state.last_request().model, "fake");
    let options = server.state.conversations.lock().unwrap().pop().unwrap().template_options;
    assert_eq!(options["enable_thinking"], json!(true));
    assert_eq!(server.chat(&ask_with("say a", json!({ "stream": false }))).ok()["object"], "chat.completion");
}
