//! The routes beside chats and completions.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oarlock_serve::Options;
use serde_json::{Value, json};

use crate::client::{Server, ask, ask_with};
use crate::fake::Fake;

#[test]
fn health_says_whether_models_are_there() {
    let server = Server::plain();
    for path in ["/health", "/v1/health"] {
        assert_eq!(server.get(path).ok(), json!({ "status": "ok" }));
    }
    let server = Server::start(Fake { is_ready: false, ..Fake::new() }, Options::local());
    let reply = server.get("/health");
    let error = json!({ "code": 503, "message": "Loading model", "type": "unavailable_error" });
    assert_eq!((reply.status, reply.json()), (503, json!({ "error": error })));
    server.chat(&ask("say a")).error(503);
}

#[test]
fn models_are_listed_with_their_adapters() {
    let server = Server::plain();
    let reply = server.get("/v1/models").ok();
    assert_eq!(reply["object"], "list");
    let fake = json!({
        "id": "fake", "object": "model", "created": 1_700_000_000, "owned_by": "oarlock", "parent": null,
        "max_model_len": 4096,
    });
    assert_eq!(reply["data"][0], fake);
    assert_eq!(reply["data"][1]["parent"], "fake");
    assert_eq!(server.get("/models/fake").ok(), fake);
    for path in ["/v1/models/owner/fake-lora", "/v1/models/owner%2Ffake-lora"] {
        assert_eq!(server.get(path).ok()["id"], "owner/fake-lora");
    }
    for path in ["/v1/models/other", "/v1/models/%ff"] {
        assert_eq!(server.get(path).error(404)["code"], "model_not_found");
    }
}

#[test]
fn unknown_routes_and_methods_are_said_in_the_form_of_the_api() {
    let server = Server::plain();
    assert_eq!(server.get("/v2/models").error(404)["code"], "unknown_url");
    assert_eq!(server.get("/v1/chat/completions").status, 405);
    server.get("/v1/chat/completions").error(405);
    server.post("/v1/models", &json!({})).error(405);
    // Here the API is another one.
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let reply = server.get(path);
        let error = reply.json();
        let said = (reply.status, &error["type"], &error["error"]["type"]);
        assert_eq!(said, (405, &json!("error"), &json!("invalid_request_error")), "{path}");
    }
    server.get("/../../etc/passwd").error(404);
}

#[test]
fn tokens_can_be_looked_at() {
    let server = Server::plain();
    let reply = server.post("/tokenize", &json!({ "content": "ab" })).ok();
    assert_eq!(reply, json!({ "tokens": [97, 98], "count": 2, "max_model_len": 4096 }));
    let reply = server.post("/v1/tokenize", &json!({ "prompt": "a", "add_special_tokens": true })).ok();
    assert_eq!(reply["tokens"], json!([2, 97]));
    let reply =
        server.post("/tokenize", &json!({ "content": "é", "with_pieces": true, "add_special": true })).ok();
    let piece = |id: u32, piece: Value| json!({ "id": id, "piece": piece });
    assert_eq!(
        reply["tokens"],
        json!([piece(2, json!("\u{2}")), piece(195, json!([195])), piece(169, json!([169]))])
    );
    let reply = server.post("/tokenize", &ask("a")).ok();
    assert_eq!(reply["count"], "user: a\u{1}\nassistant: ".len());
    let reply = server.post("/detokenize", &json!({ "tokens": [195, 169, 97] })).ok();
    assert_eq!(reply, json!({ "content": "éa", "prompt": "éa" }));
    assert_eq!(server.post("/detokenize", &json!({ "tokens": [99_999] })).error(400)["param"], "tokens");
    server.post("/detokenize", &json!({})).error(400);
    assert_eq!(server.post("/tokenize", &json!({})).error(400)["param"], "messages");
    server.post("/tokenize", &json!({ "content": "a", "parse_special": false })).error(400);
}

#[test]
fn templates_can_be_looked_at() {
    let server = Server::plain();
    let text = |fields: Value| server.post("/apply-template", &ask_with("a", fields)).ok()["prompt"].clone();
    assert_eq!(text(json!({})), "user: a\u{1}\nassistant: ");
    for fields in [json!({ "add_generation_prompt": false }), json!({ "continue_final_message": true })] {
        assert_eq!(text(fields), "user: a\u{1}\n");
    }
    let both = json!({ "add_generation_prompt": true, "continue_final_message": true });
    server.post("/apply-template", &ask_with("a", both)).error(400);
}

#[test]
fn embeddings_come_as_numbers_and_as_base64() {
    let server = Server::plain();
    let embed = |fields: Value| server.post("/v1/embeddings", &fields);
    let reply = embed(json!({ "model": "fake", "input": ["ab", "c"] })).ok();
    assert_eq!(reply["object"], "list");
    assert_eq!(reply["data"][0]["embedding"], json!([3.0, -0.5, 2.0, 0.001_f32]));
    assert_eq!((&reply["data"][1]["index"], &reply["data"][1]["object"]), (&json!(1), &json!("embedding")));
    assert_eq!(reply["usage"], json!({ "prompt_tokens": 5, "total_tokens": 5 }));
    let reply = embed(json!({ "input": [[97, 98]], "encoding_format": "base64", "dimensions": 4 })).ok();
    let bytes = STANDARD.decode(reply["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let numbers: Vec<f32> =
        bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(numbers, [2.0, -0.5, 97.0, 1e-3]);
    for (fields, param) in [
        (json!({}), "input"),
        (json!({ "input": "a", "encoding_format": "hex" }), "encoding_format"),
        (json!({ "input": "a", "dimensions": 3 }), "dimensions"),
        (json!({ "input": vec!["a"; 2049] }), "input"),
    ] {
        assert_eq!(embed(fields).error(400)["param"], param);
    }
    embed(json!({ "model": "owner/fake-lora", "input": "a" })).error(400);
    assert_eq!(embed(json!({ "input": "a".repeat(5000) })).error(400)["code"], "context_length_exceeded");
}

#[test]
fn scores_come_as_llamafactory_gives_them() {
    let server = Server::plain();
    let score = |fields: Value| server.post("/v1/score/evaluation", &fields);
    let reply = score(json!({ "model": "fake", "messages": ["abcd", "ab"], "max_length": 3 })).ok();
    assert!(reply["id"].as_str().unwrap().starts_with("scoreval-"));
    assert_eq!(
        (&reply["object"], &reply["model"], &reply["scores"]),
        (&json!("score.evaluation"), &json!("fake"), &json!([1.5, 1.0]))
    );
    for fields in [json!({}), json!({ "messages": [] }), json!({ "messages": [1] })] {
        assert_eq!(score(fields).error(400)["param"], "messages");
    }
}

#[test]
fn metrics_count_what_was_done() {
    let server = Server::plain();
    server.chat(&ask("say a b c")).ok();
    server.chat(&ask("fail 1")).error(500);
    server.chat(&ask_with("a", json!({ "model": "other" }))).error(404);
    let reply = server.get("/metrics");
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = reply.text();
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.split(' ').next() == Some(&format!("oarlock_{name}")));
        line.unwrap_or_else(|| panic!("{name}: {text}")).split(' ').nth(1).unwrap().parse().unwrap()
    };
    assert_eq!(value("tokens_predicted_total"), 4.0);
    assert_eq!(value("requests_total"), 2.0);
    assert_eq!(value("requests_failed_total"), 1.0);
    assert_eq!(value("requests_refused_total"), 1.0);
    assert_eq!(value("kv_cache_usage_ratio"), 0.25);
    assert_eq!(value("prefix_cache_bytes"), 4096.0);
    assert_eq!(value("spec_decode_num_draft_tokens_total"), 30.0);
    assert_eq!(value("spec_decode_num_accepted_tokens_total"), 20.0);
    assert_eq!(value("prompt_tokens_total"), "user: say a b c\u{1}\nassistant: ".len() as f64);
    assert!(value("predicted_tokens_seconds") >= 0.0 && value("requests_deferred") == 0.0);
    for line in text.lines() {
        assert!(
            line.starts_with("# HELP oarlock_")
                || line.starts_with("# TYPE oarlock_")
                || line.starts_with("oarlock_")
        );
    }
}
