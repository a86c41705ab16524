//! `/v1/completions`.

use serde_json::{Value, json};

use crate::client::Server;

fn complete(server: &Server, fields: Value) -> Value {
    server.post("/v1/completions", &fields).ok()
}

#[test]
fn prompts_come_as_text_and_as_tokens() {
    let server = Server::plain();
    let ids: Vec<u32> = "user: say b".bytes().map(u32::from).collect();
    let rows = [
        (json!("user: say a"), vec!["a"]),
        (json!(["user: say a", "user: say b"]), vec!["a", "b"]),
        (json!(ids), vec!["b"]),
        (json!([ids, ids]), vec!["b", "b"]),
    ];
    for (prompt, expected) in rows {
        let reply = complete(&server, json!({ "model": "fake", "prompt": prompt, "max_tokens": 3 }));
        assert_eq!(reply["object"], "text_completion");
        assert!(reply["id"].as_str().unwrap().starts_with("cmpl-"));
        let choices = reply["choices"].as_array().unwrap();
        let texts: Vec<&str> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!(texts, expected, "{prompt}");
        assert_eq!(choices.last().unwrap()["index"], expected.len() - 1);
        assert_eq!(reply["usage"]["completion_tokens"], expected.len());
    }
    // Two prompts with two answers each.
    let reply = complete(&server, json!({ "prompt": ["user: say a", "user: say b"], "n": 2 }));
    let choices = reply["choices"].as_array().unwrap();
    let texts: Vec<&Value> = choices.iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["a", "a", "b", "b"]);
    // What looks like thoughts is text, and 16 tokens are the default.
    let reply = complete(&server, json!({ "prompt": "user: say <think>a</think>" }));
    assert_eq!(reply["choices"][0]["text"], "<think>a</think>");
    assert_eq!(server.state.last_request().max_tokens, 16);
}

#[test]
fn the_likeliest_answers_are_shown() {
    let server = Server::plain();
    let prompts = ["user: either a", "user: either b"];
    let fields = json!({ "prompt": prompts, "best_of": 2, "seed": 1, "max_tokens": 20 });
    let reply = complete(&server, fields);
    let shown: Vec<(&Value, &Value)> = reply["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| (&choice["index"], &choice["text"]))
        .collect();
    assert_eq!(shown, [(&json!(0), &json!("a")), (&json!(1), &json!("b"))]);
    assert_eq!(reply["choices"][0]["logprobs"], Value::Null);
    assert_eq!(reply["usage"]["completion_tokens"], 42);
}

#[test]
fn prompts_are_repeated_with_their_log_probabilities() {
    let server = Server::plain();
    let prompt = "user: say é!";
    let fields = json!({ "prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 1 });
    let reply = complete(&server, fields);
    let choice = &reply["choices"][0];
    assert_eq!(choice["text"], format!("{prompt}\u{fffd}"));
    assert_eq!(choice["finish_reason"], "length");
    let lists = &choice["logprobs"];
    let n_tokens = prompt.len() + 2;
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[name].as_array().unwrap().len(), n_tokens, "{name}");
    }
    assert_eq!((&lists["token_logprobs"][0], &lists["top_logprobs"][0]), (&Value::Null, &Value::Null));
    assert_eq!(lists["token_logprobs"][1], -0.25);
    // The prompt alone, as those who measure models ask for it.
    let reply = complete(&server, json!({ "prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 0 }));
    assert_eq!(reply["choices"][0]["text"], prompt);
    assert_eq!(reply["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), prompt.len() + 1);
    let ids: Vec<u32> = prompt.bytes().map(u32::from).collect();
    let reply = complete(&server, json!({ "prompt": ids, "echo": true, "max_tokens": 0 }));
    assert_eq!(reply["choices"][0]["text"], prompt);
}

#[test]
fn pieces_make_the_whole() {
    let server = Server::plain();
    let fields = json!({
        "prompt": "user: say one two 你 STOP", "stream": true, "stop": "STOP", "logprobs": 0, "echo": true,
        "stream_options": { "include_usage": true },
    });
    let (events, is_done) = server.post("/v1/completions", &fields).events();
    assert!(is_done);
    let text = |event: &Value| event["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    assert_eq!(events.iter().map(text).collect::<String>(), "user: say one two 你 STOPone two 你 ");
    let (usage, events) = events.split_last().unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], 7);
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    // Offsets go on from piece to piece: the prompt has 1 token before its text.
    let offsets: Vec<u64> = events
        .iter()
        .flat_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array().into_iter().flatten())
        .map(|offset| offset.as_u64().unwrap())
        .collect();
    assert!(offsets.windows(2).all(|two| two[0] <= two[1]), "{offsets:?}");
    assert_eq!(events[1]["object"], "text_completion");
}

#[test]
fn what_cannot_be_done_is_refused() {
    let server = Server::plain();
    let rows = [
        (json!({}), "prompt"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": {} }), "prompt"),
        (json!({ "prompt": ["a", 1] }), "prompt"),
        (json!({ "prompt": [[-1]] }), "prompt"),
        (json!({ "prompt": "a", "suffix": "b" }), "suffix"),
        (json!({ "prompt": "a", "n": 2, "best_of": 1 }), "best_of"),
        (json!({ "prompt": "a", "best_of": 9 }), "best_of"),
        (json!({ "prompt": "a", "best_of": 2, "stream": true }), "best_of"),
        (json!({ "prompt": "a", "max_tokens": 0 }), "max_tokens"),
        (json!({ "prompt": "a", "logprobs": true }), "logprobs"),
        (json!({ "prompt": vec!["a"; 129] }), "prompt"),
        (json!({ "prompt": vec!["a"; 65], "n": 2 }), "prompt"),
        (json!({ "prompt": [999_999], "echo": true }), "tokens"),
    ];
    for (fields, param) in rows {
        let error = server.post("/v1/completions", &fields).error(400);
        assert_eq!(error["param"], param, "{fields}: {error}");
    }
    let error = server.post("/v1/completions", &json!({ "prompt": [[]] })).error(400);
    assert!(error["message"].as_str().unwrap().contains("empty"));
}
