//! The APIs that coding agents speak: `/v1/messages` and `/v1/responses`.

use serde_json::{Value, json};

use crate::client::{Reply, Server};

const CALL: &str = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}</tool_call>";

fn with(mut body: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn message(server: &Server, content: &str, fields: Value) -> Reply {
    let messages = json!([{ "role": "user", "content": content }]);
    let body = json!({ "model": "fake", "max_tokens": 100, "messages": messages });
    server.post("/v1/messages", &with(body, fields))
}

fn respond(server: &Server, input: Value, fields: Value) -> Reply {
    server.post("/v1/responses", &with(json!({ "model": "fake", "input": input }), fields))
}

/// The events of a stream, whose names are those in their data.
fn events(reply: &Reply) -> Vec<Value> {
    let text = reply.text();
    let event = |frame: &str| {
        let (name, data) = frame.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let value: Value = serde_json::from_str(data).unwrap();
        assert_eq!(value["type"], name);
        value
    };
    text.split("\n\n").filter(|frame| !frame.is_empty()).map(event).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

fn messages_tools() -> Value {
    json!([{ "name": "weather", "description": "d", "input_schema": { "type": "object" } }])
}

fn responses_tools() -> Value {
    json!([{ "type": "function", "name": "weather", "parameters": { "type": "object" }, "strict": true }])
}

#[test]
fn a_message_has_the_form_of_the_api() {
    let server = Server::plain();
    let reply =
        message(&server, "say one two STOP", json!({ "stop_sequences": ["STOP"], "system": "be kind" })).ok();
    assert!(reply["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(
        (&reply["type"], &reply["role"], &reply["model"]),
        (&json!("message"), &json!("assistant"), &json!("fake"))
    );
    assert_eq!(reply["content"], json!([{ "type": "text", "text": "one two " }]));
    assert_eq!((&reply["stop_reason"], &reply["stop_sequence"]), (&json!("stop_sequence"), &json!("STOP")));
    assert_eq!(reply["usage"]["output_tokens"], 3);
    let said = server.state.conversations.lock().unwrap().pop().unwrap().messages;
    assert_eq!((said[0].role.name(), said[0].content.as_str()), ("system", "be kind"));
    let reply = message(&server, "say one two", json!({ "max_tokens": 1 })).ok();
    assert_eq!((&reply["stop_reason"], &reply["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
    // The parts come in their order.
    let text = format!("say <think>hm</think> so {CALL}");
    let reply = message(&server, &text, json!({ "tools": messages_tools() })).ok();
    let content = reply["content"].as_array().unwrap();
    assert_eq!(content[0], json!({ "type": "thinking", "thinking": "hm", "signature": "" }));
    assert_eq!(content[1], json!({ "type": "text", "text": "so" }));
    assert_eq!((&content[2]["name"], &content[2]["input"]), (&json!("weather"), &json!({ "city": "Bonn" })));
    assert!(content[2]["id"].as_str().unwrap().starts_with("toolu_"));
    assert_eq!((reply["stop_reason"].as_str(), content.len()), (Some("tool_use"), 3));
}

#[test]
fn a_stream_of_a_message_has_its_events() {
    let server = Server::plain();
    let text = format!("say a b {CALL}");
    let reply = message(&server, &text, json!({ "stream": true, "tools": messages_tools() }));
    let events = events(&reply);
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let mut expected = vec!["message_start", block[0], block[1], block[1], block[2]];
    expected.extend(block);
    expected.extend(["message_delta", "message_stop"]);
    assert_eq!(kinds(&events), expected);
    assert_eq!(events[0]["message"]["content"], json!([]));
    assert_eq!(
        events[1],
        json!({ "type": block[0], "index": 0, "content_block": { "type": "text", "text": "" } })
    );
    assert_eq!(events[3]["delta"], json!({ "type": "text_delta", "text": " b" }));
    assert_eq!((&events[5]["index"], &events[5]["content_block"]["input"]), (&json!(1), &json!({})));
    assert_eq!(
        events[6]["delta"],
        json!({ "type": "input_json_delta", "partial_json": "{\"city\":\"Bonn\"}" })
    );
    assert_eq!(events[8]["delta"], json!({ "stop_reason": "tool_use", "stop_sequence": null }));
    assert!(events[8]["usage"]["output_tokens"].as_u64().unwrap() > 2);
    let failed = message(&server, "fail 1", json!({ "stream": true }));
    let failed = self::events(&failed);
    let error = &failed.last().unwrap()["error"];
    assert_eq!(error["type"], "api_error");
    assert!(error["message"].as_str().unwrap().contains("out of memory"));
}

#[test]
fn messages_with_calls_and_results_are_read() {
    let server = Server::plain();
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "weather?" }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "look", "signature": "x" },
            { "type": "redacted_thinking", "data": "y" },
            { "type": "text", "text": "let me see" },
            { "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Bonn" } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "sunny" }] },
            { "type": "text", "text": "say fine" },
        ] },
    ]);
    let fields = json!({ "messages": messages, "thinking": { "type": "disabled" } });
    assert_eq!(message(&server, "", fields).ok()["content"][0]["text"], "fine");
    let conversation = server.state.conversations.lock().unwrap().pop().unwrap();
    assert_eq!(conversation.template_options["enable_thinking"], json!(false));
    let said = &conversation.messages;
    let told: Vec<(&str, &str)> = said.iter().map(|one| (one.role.name(), one.content.as_str())).collect();
    assert_eq!(
        told,
        [("user", "weather?"), ("assistant", "let me see"), ("tool", "sunny"), ("user", "say fine")]
    );
    assert_eq!(said[1].reasoning.as_deref(), Some("look"));
    assert_eq!(said[1].calls[0].arguments, "{\"city\":\"Bonn\"}");
    assert_eq!(said[2].call_id.as_deref(), Some("t1"));
    // A beginning of the answer is gone on with.
    let messages = json!([{ "role": "user", "content": "say a" }, { "role": "assistant", "content": "The" }]);
    message(&server, "", json!({ "messages": messages })).ok();
    let conversation = server.state.conversations.lock().unwrap().pop().unwrap();
    assert!(conversation.continues_final_message && !conversation.adds_generation_prompt);
}

#[test]
fn errors_of_messages_have_their_form() {
    let server = Server::plain();
    let image = json!([{ "role": "user", "content": [{ "type": "image", "source": {} }] }]);
    let rows = [
        (json!({ "max_tokens": null }), 400, "invalid_request_error"),
        (json!({ "messages": image }), 400, "invalid_request_error"),
        (json!({ "messages": [] }), 400, "invalid_request_error"),
        (
            json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }),
            400,
            "invalid_request_error",
        ),
        (
            json!({ "tools": messages_tools(), "tool_choice": { "type": "perhaps" } }),
            400,
            "invalid_request_error",
        ),
        (json!({ "model": "other" }), 404, "not_found_error"),
    ];
    for (fields, status, kind) in rows {
        let reply = message(&server, "say a", fields.clone());
        let error = reply.json();
        assert_eq!((reply.status, &error["type"]), (status, &json!("error")), "{fields}: {error}");
        assert_eq!(error["error"]["type"], kind, "{fields}");
    }
    let body = json!({ "model": "fake", "messages": [{ "role": "user", "content": "a" }], "system": "b" });
    let n_tokens = "system: b\u{1}\nuser: a\u{1}\nassistant: ".len();
    assert_eq!(server.post("/v1/messages/count_tokens", &body).ok(), json!({ "input_tokens": n_tokens }));
}

#[test]
fn a_response_has_the_form_of_the_api() {
    let server = Server::plain();
    let text = format!("say <think>hm</think> so {CALL}");
    let fields =
        json!({ "tools": responses_tools(), "instructions": "be kind", "reasoning": { "effort": "low" } });
    let reply = respond(&server, json!(text), fields).ok();
    assert_eq!((&reply["object"], &reply["status"]), (&json!("response"), &json!("completed")));
    assert_eq!((&reply["store"], &reply["reasoning"]["effort"]), (&json!(false), &json!("low")));
    let output = reply["output"].as_array().unwrap();
    assert_eq!(output.len(), 3);
    assert_eq!(output[0]["content"], json!([{ "type": "reasoning_text", "text": "hm" }]));
    assert_eq!(output[1]["content"][0]["text"], "so");
    assert_eq!(
        (&output[2]["name"], &output[2]["arguments"]),
        (&json!("weather"), &json!("{\"city\":\"Bonn\"}"))
    );
    assert!(output[2]["call_id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(reply["tools"][0]["name"], "weather");
    let conversation = server.state.conversations.lock().unwrap().pop().unwrap();
    assert_eq!(conversation.messages[0].content, "be kind");
    assert_eq!(conversation.template_options["reasoning_effort"], "low");
    assert_eq!(conversation.tools[0].definition["function"]["strict"], true);
    let reply = respond(&server, json!("say one two"), json!({ "max_output_tokens": 1 })).ok();
    assert_eq!(reply["status"], "incomplete");
    assert_eq!(reply["incomplete_details"], json!({ "reason": "max_output_tokens" }));
}

#[test]
fn a_stream_of_a_response_has_its_events() {
    let server = Server::plain();
    let text = format!("say a b {CALL}");
    let reply = respond(&server, json!(text), json!({ "stream": true, "tools": responses_tools() }));
    let events = events(&reply);
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds(&events), expected);
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..14).collect::<Vec<u64>>());
    assert_eq!(events[2]["item"]["content"], json!([]));
    let id = &events[2]["item"]["id"];
    assert!(events[3..8].iter().all(|event| event["item_id"] == *id && event["output_index"] == 0));
    assert_eq!(events[6]["text"], "a b");
    assert_eq!(events[9]["item"]["arguments"], "");
    let response = &events[13]["response"];
    assert_eq!(response["output"].as_array().unwrap().len(), 2);
    assert_eq!(response["output"][0], events[8]["item"]);
    let failed = respond(&server, json!("fail 1"), json!({ "stream": true }));
    let failed = self::events(&failed);
    assert_eq!(failed.last().unwrap()["type"], "response.failed");
    assert_eq!(failed.last().unwrap()["response"]["error"]["code"], "server_error");
}

#[test]
fn items_of_earlier_responses_are_read() {
    let server = Server::plain();
    let input = json!([
        { "role": "developer", "content": "rules" },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "weather?" }] },
        { "type": "reasoning", "id": "r", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "see" }] },
        { "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}" },
        { "type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c1", "output": "sunny" },
        { "type": "function_call_output", "call_id": "c2", "output": [{ "type": "input_text", "text": "dry" }] },
        { "role": "user", "content": "say fine" },
    ]);
    assert_eq!(respond(&server, input, json!({})).ok()["output"][0]["content"][0]["text"], "fine");
    let said = server.state.conversations.lock().unwrap().pop().unwrap().messages;
    let told: Vec<(&str, &str)> = said.iter().map(|one| (one.role.name(), one.content.as_str())).collect();
    let expected = [
        ("system", "rules"),
        ("user", "weather?"),
        ("assistant", "see"),
        ("tool", "sunny"),
        ("tool", "dry"),
        ("user", "say fine"),
    ];
    assert_eq!(told, expected);
    assert_eq!((said[2].reasoning.as_deref(), said[2].calls.len()), (Some("hm"), 2));
}

#[test]
fn what_responses_cannot_do_is_refused() {
    let server = Server::plain();
    let image = json!([{ "role": "user", "content": [{ "type": "input_image", "image_url": "data:," }] }]);
    let rows = [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "background": true }), "background"),
        (json!({ "text": { "format": { "type": "grammar" } } }), "text.format.type"),
        (json!({ "text": { "format": { "type": "json_schema", "name": "a" } } }), "text.format.schema"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "input": [{ "type": "item_reference", "id": "a" }] }), "input[0].type"),
        (json!({ "input": image }), "input[0].content[0]"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": null }), "input"),
    ];
    for (fields, param) in rows {
        let error = respond(&server, json!("say a"), fields.clone()).error(400);
        assert_eq!(error["param"], param, "{fields}: {error}");
    }
    let choice =
        json!({ "type": "allowed_tools", "mode": "auto", "tools": [{ "type": "function", "name": "x" }] });
    respond(&server, json!("say a"), json!({ "tools": responses_tools(), "tool_choice": choice })).ok();
    assert!(server.state.conversations.lock().unwrap().pop().unwrap().tools.is_empty());
}
