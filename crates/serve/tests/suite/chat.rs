//! `/v1/chat/completions` as a whole.

use serde_json::{Value, json};

use crate::client::{Server, ask, ask_with};

fn content(reply: &Value) -> Vec<&str> {
    let choices = reply["choices"].as_array().unwrap();
    choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap()).collect()
}

fn tools() -> Value {
    json!([{ "type": "function", "function": { "name": "weather", "parameters": { "type": "object" } } }])
}

#[test]
fn an_answer_has_the_form_of_the_api() {
    let server = Server::plain();
    let reply = server.chat(&ask("say Hello world"));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let reply = reply.ok();
    assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(reply["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(reply["object"], "chat.completion");
    assert_eq!(reply["model"], "fake");
    assert_eq!(reply["system_fingerprint"], "fp_fake");
    let message = json!({ "role": "assistant", "content": "Hello world", "refusal": null });
    let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": "stop" });
    assert_eq!(reply["choices"], json!([choice]));
    let n_prompt = "user: say Hello world\u{1}\nassistant: ".len();
    assert_eq!(
        reply["usage"],
        json!({
            "prompt_tokens": n_prompt,
            "completion_tokens": 2,
            "total_tokens": n_prompt + 2,
            "prompt_tokens_details": { "cached_tokens": 1 },
            "completion_tokens_details": { "reasoning_tokens": 0 },
        })
    );
    let timings = &reply["timings"];
    assert_eq!([&timings["cache_n"], &timings["prompt_n"], &timings["predicted_n"]], [1, n_prompt - 1, 2]);
    for name in ["prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"] {
        assert!(timings[name].as_f64().is_some_and(|value| value >= 0.0), "{timings}");
    }
    // Also at the path without the version, and for the adapter, whose name has a slash.
    let reply = server.post("/chat/completions", &ask_with("say a", json!({ "model": "owner/fake-lora" })));
    assert_eq!(reply.ok()["model"], "owner/fake-lora");
    assert_eq!(server.state.last_request().model, "owner/fake-lora");
}

#[test]
fn what_is_asked_for_reaches_the_backend() {
    let server = Server::plain();
    let fields = json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1,
        "presence_penalty": -1, "frequency_penalty": 2.0, "logit_bias": { "7": -100, "3": 5.5 }, "seed": 42,
        "max_tokens": 9, "max_completion_tokens": 5, "stop_token_ids": [1, 2], "ignore_eos": true,
        "user": "somebody", "metadata": { "a": [1] }, "store": null, "tools": null, "stop": null,
        "chat_template_kwargs": { "custom": [1] }, "reasoning_effort": "none",
    });
    server.chat(&ask_with("count 9", fields)).ok();
    let request = server.state.last_request();
    let sampling = &request.sampling;
    assert_eq!(
        [sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty],
        [0.5, 0.9, 0.05, 1.1]
    );
    assert_eq!([sampling.presence_penalty, sampling.frequency_penalty], [-1.0, 2.0]);
    assert_eq!((sampling.top_k, &sampling.logit_bias), (40, &vec![(3, 5.5), (7, -100.0)]));
    assert_eq!((request.seed, request.max_tokens), (42, 5));
    assert_eq!((request.stop_ids, request.ignores_eos), (vec![1, 2], true));
    assert_eq!((request.logprobs, request.prompt_logprobs), (None, None));
    let conversation = server.state.conversations.lock().unwrap().pop().unwrap();
    let options = json!({
        "custom": [1], "enable_thinking": false, "open_thinking": false, "reasoning_effort": "none",
    });
    assert_eq!(Value::Object(conversation.template_options), options);
    // The defaults of the API, and as many tokens as there is room for.
    server.chat(&ask("count 1")).ok();
    let request = server.state.last_request();
    assert_eq!(request.sampling, oarlock_serve::Sampling::OPENAI);
    assert_eq!(request.max_tokens, 4096 - request.ids.len());
    // A seed that says nothing, and one below zero.
    for (seed, expected) in
        [(json!(-1), None), (json!(-2), Some(u64::MAX - 1)), (json!(u64::MAX), Some(u64::MAX))]
    {
        let reply = server.chat(&ask_with("count 1", json!({ "seed": seed })));
        reply.ok();
        let seed = server.state.last_request().seed;
        assert!(expected.map_or(seed > 1, |expected| seed == expected), "{seed}");
    }
    // Without probability nothing but the likeliest is left.
    server.chat(&ask_with("count 1", json!({ "top_p": 0 }))).ok();
    let sampling = server.state.last_request().sampling;
    assert_eq!((sampling.top_p, sampling.top_k), (1.0, 1));
}

#[test]
fn answers_to_one_prompt_have_seeds_of_their_own() {
    let server = Server::plain();
    let body = ask_with("count 6", json!({ "n": 3, "seed": 7 }));
    let (first, second) = (server.chat(&body).ok(), server.chat(&body).ok());
    assert_eq!(content(&first), content(&second));
    assert_eq!(content(&first).len(), 3);
    assert_ne!(content(&first)[0], content(&first)[1]);
    let seeds: Vec<u64> =
        server.state.requests.lock().unwrap()[..3].iter().map(|request| request.seed).collect();
    assert_eq!(seeds, [7, 8, 9]);
    // The same answer alone as among others.
    let alone = server.chat(&ask_with("count 6", json!({ "seed": 8 }))).ok();
    assert_eq!(content(&alone)[0], content(&first)[1]);
    let indices: Vec<&Value> =
        first["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indices, [0, 1, 2]);
    // The prompt is counted once.
    assert_eq!(first["usage"]["prompt_tokens"], second["usage"]["prompt_tokens"]);
    assert_eq!(first["usage"]["completion_tokens"], 18);
}

#[test]
fn stop_strings_and_lengths_end_answers() {
    let server = Server::plain();
    let reply = server.chat(&ask_with("say one two three four", json!({ "stop": [" three", "zzz"] }))).ok();
    assert_eq!(content(&reply), ["one two"]);
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    // What only looks like a stop string comes.
    let reply = server.chat(&ask_with("say one two thr", json!({ "stop": " three" }))).ok();
    assert_eq!(content(&reply), ["one two thr"]);
    let reply = server.chat(&ask_with("say one two three", json!({ "max_tokens": 2 }))).ok();
    assert_eq!((content(&reply)[0], &reply["choices"][0]["finish_reason"]), ("one two", &json!("length")));
    // A character that is cut in its middle.
    let reply = server.chat(&ask_with("say a 你", json!({ "max_tokens": 3 }))).ok();
    assert_eq!(content(&reply), ["a \u{fffd}"]);
}

#[test]
fn log_probabilities_stand_beside_tokens() {
    let server = Server::plain();
    let fields = json!({ "logprobs": true, "top_logprobs": 2, "stop": "END" });
    let reply = server.chat(&ask_with("say é x END y", fields)).ok();
    assert_eq!(content(&reply), ["é x "]);
    let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<Vec<u8>> =
        content.iter().map(|token| serde_json::from_value(token["bytes"].clone()).unwrap()).collect();
    // The token of which a part was shown is there, and none behind it.
    assert_eq!(bytes, [&b"\xc3"[..], b"\xa9", b" x", b" END"]);
    assert_eq!(content[0]["token"], "\u{fffd}");
    assert_eq!(content[0]["logprob"], -0.125);
    let top = content[0]["top_logprobs"].as_array().unwrap();
    assert_eq!((top.len(), &top[1]["logprob"], &top[1]["token"]), (2, &json!(-1.125), &json!(" sea")));
    let reply = server.chat(&ask_with("say a", json!({ "logprobs": true }))).ok();
    assert_eq!(reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

#[test]
fn calls_are_told_from_text() {
    let server = Server::plain();
    let call = r#"<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>"#;
    let reply = server.chat(&ask_with(&format!("say {call}\n{call}"), json!({ "tools": tools() }))).ok();
    let choice = &reply["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&Value::Null, &json!("tool_calls"))
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    for call in calls {
        assert_eq!(call["type"], "function");
        assert_eq!(call["function"], json!({ "name": "weather", "arguments": "{\"city\":\"Köln\"}" }));
        let id = call["id"].as_str().unwrap().strip_prefix("call_").unwrap();
        assert!(id.len() == 24 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    }
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    // One call where more are not wanted, and the sequence ends with it.
    let fields = json!({ "tools": tools(), "parallel_tool_calls": false });
    let reply = server.chat(&ask_with(&format!("say a {call} {call} b"), fields)).ok();
    assert_eq!(reply["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(reply["choices"][0]["message"]["content"], "a");
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn what_is_no_call_stays_text() {
    let server = Server::plain();
    let unknown = r#"<tool_call>{"name": "other", "arguments": {}}</tool_call>"#;
    let broken = "a <tool_call>{\"name\": </tool_call> b";
    for text in [unknown, broken] {
        let reply = server.chat(&ask_with(&format!("say {text}"), json!({ "tools": tools() }))).ok();
        assert_eq!((content(&reply)[0], &reply["choices"][0]["finish_reason"]), (text, &json!("stop")));
    }
    let call = r#"<tool_call>{"name": "weather", "arguments": {}}</tool_call>"#;
    for fields in [json!({}), json!({ "tools": tools(), "tool_choice": "none" })] {
        assert_eq!(content(&server.chat(&ask_with(&format!("say {call}"), fields)).ok()), [call]);
    }
}

#[test]
fn thoughts_stand_beside_text() {
    let server = Server::plain();
    let reply = server.chat(&ask("say <think>\nfirst this\n</think>\n\nthen that")).ok();
    let message = &reply["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&json!("then that"), &json!("first this"))
    );
    assert!(reply["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 1);
    // Where the prompt has opened them.
    let fields = json!({ "chat_template_kwargs": { "enable_thinking": true } });
    let reply = server.chat(&ask_with("say this </think> that", fields)).ok();
    let message = &reply["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("that"), &json!("this")));
}

#[test]
fn messages_come_in_all_their_forms() {
    let server = Server::plain();
    let call =
        json!({ "id": "c1", "type": "function", "function": { "name": "f", "arguments": "{\"a\":1}" } });
    let messages = json!([
        { "role": "developer", "content": "rules" },
        { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }], "name": "x" },
        { "role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": "hm" },
        { "role": "tool", "content": "1", "tool_call_id": "c1" },
        { "role": "function", "content": "2", "name": "f" },
        { "role": "user", "content": "say ok", "unknown": { "x": 1 } },
    ]);
    let reply = server.chat(&json!({ "messages": messages })).ok();
    assert_eq!(content(&reply), ["ok"]);
    let said = server.state.conversations.lock().unwrap().pop().unwrap().messages;
    let told: Vec<(&str, &str)> =
        said.iter().map(|message| (message.role.name(), message.content.as_str())).collect();
    let expected = [
        ("system", "rules"),
        ("user", "a\nb"),
        ("assistant", ""),
        ("tool", "1"),
        ("tool", "2"),
        ("user", "say ok"),
    ];
    assert_eq!(told, expected);
    assert_eq!((said[1].name.as_deref(), said[2].reasoning.as_deref()), (Some("x"), Some("hm")));
    assert_eq!((said[2].calls[0].arguments.as_str(), said[3].call_id.as_deref()), ("{\"a\":1}", Some("c1")));
}

#[test]
fn what_cannot_be_done_is_refused_with_its_name() {
    let server = Server::plain();
    let image = json!([{ "type": "image_url", "image_url": { "url": "data:," } }]);
    let audio = json!([{ "type": "text", "text": "a" }, { "type": "input_audio", "input_audio": {} }]);
    let rows = [
        (json!({ "messages": [{ "role": "user", "content": image }] }), "messages[0].content[0]"),
        (json!({ "messages": [{ "role": "user", "content": audio }] }), "messages[0].content[1]"),
        (json!({ "response_format": { "type": "grammar" } }), "response_format.type"),
        (json!({ "tools": tools(), "tool_choice": "perhaps" }), "tool_choice"),
        (json!({ "modalities": ["text", "audio"] }), "modalities"),
        (json!({ "structured_outputs": { "structural_tag": {} } }), "structured_outputs.structural_tag"),
        (json!({ "functions": [{ "name": "f" }] }), "functions"),
        (json!({ "tools": [{ "type": "custom" }] }), "tools[0].type"),
    ];
    for (fields, param) in rows {
        let error = server.chat(&ask_with("say a", fields.clone())).error(400);
        assert_eq!(
            (&error["param"], &error["type"]),
            (&json!(param), &json!("invalid_request_error")),
            "{fields}"
        );
        assert_eq!(error["code"], "unsupported_parameter", "{fields}");
    }
    server.chat(&ask_with("say a", json!({ "response_format": { "type": "text" }, "functions": [] }))).ok();
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [] } });
    server.chat(&ask_with("say a", json!({ "tools": tools(), "tool_choice": allowed }))).ok();
    assert!(server.state.conversations.lock().unwrap().pop().unwrap().tools.is_empty());
}

#[test]
fn wrong_values_are_refused_with_their_name() {
    let server = Server::plain();
    let rows = [
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": "a" }), "messages"),
        (json!({ "messages": [{ "role": "robot", "content": "a" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": 1 }] }), "messages[0].content"),
        (json!({ "temperature": 2.1 }), "temperature"),
        (json!({ "temperature": "1" }), "temperature"),
        (json!({ "top_p": -0.1 }), "top_p"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 1.5 }), "n"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "top_logprobs": 3 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "logit_bias": { "a": 1 } }), "logit_bias"),
        (json!({ "logit_bias": { "1": 101 } }), "logit_bias"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "stop": [1] }), "stop"),
        (json!({ "tools": [{ "type": "function", "function": {} }] }), "tools[0].function.name"),
        (json!({ "chat_template_kwargs": { "messages": [] } }), "chat_template_kwargs"),
        (json!({ "stream_options": { "include_usage": 1 } }), "stream_options.include_usage"),
    ];
    for (fields, param) in rows {
        let error = server.chat(&ask_with("say a", fields.clone())).error(400);
        assert_eq!(error["param"], param, "{fields}: {error}");
    }
    let error = server.chat(&ask("refuse")).error(400);
    assert_eq!(
        (&error["param"], &error["message"]),
        (&json!("messages[0]"), &json!("The template refuses this."))
    );
    let error = server.chat(&ask_with("a", json!({ "model": "other" }))).error(404);
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
}

#[test]
fn a_prompt_without_room_for_an_answer_is_refused() {
    let server = Server::plain();
    let error = server.chat(&ask(&"a".repeat(5000))).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!((error["n_ctx"].as_u64(), error["n_prompt_tokens"].as_u64()), (Some(4096), Some(5019)));
}

#[test]
fn faults_of_the_backend_are_not_those_of_the_client() {
    let server = Server::plain();
    let error = server.chat(&ask("fail 2")).error(500);
    assert!(error["message"].as_str().unwrap().contains("out of memory"));
    let error = server.chat(&ask("drop 2")).error(500);
    assert!(error["message"].as_str().unwrap().contains("given up"));
    server.chat(&ask("panic")).error(500);
    // What the request asks for is the client's.
    let error = server.chat(&ask("misfit 2")).error(400);
    assert!(error["message"].as_str().unwrap().contains("it takes too much for a token"), "{error}");
    assert_eq!(error["type"], "invalid_request_error");
    server.chat(&ask("say still here")).ok();
}
