//! What answers have to be: the fields of all APIs that say so, and what a backend is told.

use oarlock_serve::{CallForm, Form, Schema, TextForm};
use serde_json::{Value, json};

use crate::client::{Server, ask, ask_with};

fn tool(name: &str, is_strict: bool) -> Value {
    json!({ "type": "function", "function": { "name": name, "parameters": parameters(), "strict": is_strict } })
}

fn parameters() -> Value {
    json!({ "type": "object", "properties": { "city": { "type": "string" } } })
}

fn call(name: &str, is_strict: bool) -> CallForm {
    CallForm { name: name.to_owned(), arguments: Schema { value: parameters(), is_strict } }
}

fn schema(value: Value, is_strict: bool) -> TextForm {
    TextForm::Json(Schema { value, is_strict })
}

fn of_text(text: TextForm) -> Option<Form> {
    Some(Form { text: Some(text), calls: Vec::new(), has_one_call: false })
}

#[test]
fn each_field_of_a_chat_says_what_its_answer_has_to_be() {
    let server = Server::plain();
    let value = json!({ "type": "object", "required": ["b", "a"] });
    let strict =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": value, "strict": true } });
    let any_object = || schema(json!({ "type": "object" }), false);
    let rows = [
        (json!({}), None),
        (json!({ "response_format": { "type": "text" } }), None),
        (json!({ "response_format": strict }), of_text(schema(value.clone(), true))),
        (json!({ "response_format": { "type": "json_object" } }), of_text(any_object())),
        (
            json!({ "response_format": { "type": "json_object", "schema": value } }),
            of_text(schema(value.clone(), false)),
        ),
        (json!({ "guided_json": value }), of_text(schema(value.clone(), true))),
        (json!({ "guided_json": value.to_string() }), of_text(schema(value.clone(), true))),
        (json!({ "json_schema": value }), of_text(schema(value.clone(), true))),
        (json!({ "guided_regex": "a+" }), of_text(TextForm::Regex("a+".to_owned()))),
        (json!({ "guided_choice": ["a", "b"] }), of_text(TextForm::OneOf(vec!["a".into(), "b".into()]))),
        (json!({ "guided_grammar": "start: \"a\"" }), of_text(TextForm::Lark("start: \"a\"".to_owned()))),
        // Both have rules of llama.cpp, and an empty text is none.
        (json!({ "grammar": "root ::= \"a\"" }), of_text(TextForm::Gbnf("root ::= \"a\"".to_owned()))),
        (json!({ "guided_grammar": "root ::= \"a\"" }), of_text(TextForm::Gbnf("root ::= \"a\"".to_owned()))),
        (json!({ "grammar": "" }), None),
        (
            json!({ "structured_outputs": { "regex": "a+", "json": null } }),
            of_text(TextForm::Regex("a+".into())),
        ),
        (json!({ "structured_outputs": { "json_object": true } }), of_text(any_object())),
    ];
    for (fields, form) in rows {
        server.chat(&ask_with("say a", fields.clone())).ok();
        assert_eq!(server.state.last_form(), form, "{fields}");
        let read = server.state.last_request().form;
        assert_eq!(read.as_ref().and_then(|read| read.get::<Form>()), form.as_ref(), "{fields}");
    }
    server.post("/v1/completions", &json!({ "prompt": "user: say a", "guided_regex": "a" })).ok();
    assert_eq!(server.state.last_form(), of_text(TextForm::Regex("a".to_owned())));
}

#[test]
fn calls_are_forced_where_a_choice_says_so() {
    let server = Server::plain();
    let tools = json!([tool("f", false), tool("g", true)]);
    let form =
        |text, calls: &[CallForm], has_one_call| Some(Form { text, calls: calls.to_vec(), has_one_call });
    let both = [call("f", false), call("g", true)];
    let (f, g) = both.split_at(1);
    let named = json!({ "type": "function", "function": { "name": "f" } });
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "required", "tools": [tool("g", true)] } });
    let rows = [
        (json!({ "tools": [tool("f", false)] }), None),
        (json!({ "tools": tools, "tool_choice": "none" }), None),
        // What is strict holds wherever the model calls it.
        (json!({ "tools": tools }), form(Some(TextForm::Any), &both, false)),
        (json!({ "tools": tools, "tool_choice": "required" }), form(None, &both, false)),
        (
            json!({ "tools": tools, "tool_choice": "required", "parallel_tool_calls": false }),
            form(None, &both, true),
        ),
        (json!({ "tools": tools, "tool_choice": named }), form(None, f, true)),
        (json!({ "tools": tools, "tool_choice": allowed }), form(None, g, false)),
        (
            json!({ "tools": [tool("f", false)], "response_format": { "type": "json_object" } }),
            form(Some(schema(json!({ "type": "object" }), false)), f, false),
        ),
    ];
    for (fields, form) in rows {
        server.chat(&ask_with("say a", fields.clone())).ok();
        assert_eq!(server.state.last_form(), form, "{fields}");
    }
    let messages = json!([{ "role": "user", "content": "say a" }]);
    let tools = json!([{ "name": "f", "input_schema": parameters() }]);
    for (choice, form) in [
        (json!({ "type": "any" }), form(None, f, false)),
        (json!({ "type": "any", "disable_parallel_tool_use": true }), form(None, f, true)),
        (json!({ "type": "tool", "name": "f" }), form(None, f, true)),
        (json!({ "type": "auto" }), None),
    ] {
        let body = json!({ "max_tokens": 9, "messages": messages, "tools": tools, "tool_choice": choice });
        server.post("/v1/messages", &body).ok();
        assert_eq!(server.state.last_form(), form, "{choice}");
    }
    let tools = json!([{ "type": "function", "name": "f", "parameters": parameters() }]);
    for choice in [json!("required"), json!({ "type": "function", "name": "f" })] {
        let is_named = choice.is_object();
        let body = json!({ "input": "say a", "tools": tools, "tool_choice": choice });
        server.post("/v1/responses", &body).ok();
        assert_eq!(server.state.last_form(), form(None, f, is_named));
    }
}

#[test]
fn the_other_apis_have_a_format_of_their_own() {
    let server = Server::plain();
    let format = json!({ "type": "json_schema", "name": "x", "schema": parameters(), "strict": true });
    let body = json!({ "input": "say a", "text": { "format": format } });
    let reply = server.post("/v1/responses", &body).ok();
    assert_eq!(reply["text"]["format"], format);
    assert_eq!(server.state.last_form(), of_text(schema(parameters(), true)));
    let format = json!({ "type": "json_schema", "schema": parameters() });
    for field in [json!({ "output_format": format }), json!({ "output_config": { "format": format } })] {
        let mut body = json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": "say a" }] });
        body.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        server.post("/v1/messages", &body).ok();
        assert_eq!(server.state.last_form(), of_text(schema(parameters(), false)), "{field}");
    }
}

#[test]
fn forms_that_make_no_sense_are_refused_with_their_field() {
    let server = Server::plain();
    let never = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "never": 1 } } });
    let rows = [
        (json!({ "response_format": never }), "response_format"),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": {} } }),
            "response_format.json_schema.schema",
        ),
        (json!({ "response_format": { "type": "json_object" }, "guided_regex": "a" }), "guided_regex"),
        (json!({ "guided_json": "{" }), "guided_json"),
        (json!({ "guided_json": true }), "guided_json"),
        (json!({ "guided_choice": [] }), "guided_choice"),
        (json!({ "guided_choice": [1] }), "guided_choice"),
        (json!({ "guided_regex": "a".repeat(70_000) }), "guided_regex"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (
            json!({ "tools": [tool("f", false)], "tool_choice": { "type": "function", "name": "g" } }),
            "tool_choice",
        ),
    ];
    for (fields, param) in rows {
        let error = server.chat(&ask_with("say a", fields.clone())).error(400);
        assert_eq!(error["param"], param, "{error}");
    }
    // A model that can be held to nothing.
    let fields = json!({ "model": "owner/fake-lora", "response_format": { "type": "json_object" } });
    assert_eq!(server.chat(&ask_with("say a", fields)).error(400)["param"], "response_format");
    server.chat(&ask("say a")).ok();
}
