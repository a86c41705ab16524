//! Calls of functions inside messages: JSON that is checked when it is read.

use serde_json::{Value, json};

use super::super::example::Message;
use super::columns::{Refusal, dropped};

/// Around calls and thoughts in the text of a message.
const CALL: (&str, &str) = ("<tool_call>", "</tool_call>");
const THOUGHT: (&str, &str) = ("<think>\n", "\n</think>\n\n");

const BROKEN: &str =
    "a call of a function is not JSON of name and arguments (Invalid JSON format in function message)";

/// The message of a function tag: JSON of one call or of a list, after a thought, or between `<tool_call>` marks with text
/// around.
pub(super) fn called(content: &str) -> Result<Message, Refusal> {
    let (before, json) = match between(content, CALL) {
        Some((whole, inside)) => (content.replacen(whole, "", 1), inside.to_owned()),
        None => match between(content, THOUGHT) {
            Some((whole, _)) => (whole.to_owned(), content.replacen(whole, "", 1)),
            None => (String::new(), content.to_owned()),
        },
    };
    let Ok(calls) = serde_json::from_str::<Value>(&json) else { return dropped(BROKEN) };
    let calls = match calls {
        Value::Array(calls) => calls,
        call => vec![call],
    };
    if !calls.iter().all(is_call) {
        return dropped(BROKEN);
    }
    let calls = calls.into_iter().map(|call| {
        json!({"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}})
    });
    let mut message = Message::new("assistant", before);
    message.extra.insert("tool_calls".into(), calls.collect());
    Ok(message)
}

/// The fields of a message that call functions: OpenAI's list, and the single call of its older files.
pub(super) const FIELDS: [&str; 2] = ["tool_calls", "function_call"];

/// What a message calls beside its text; `None` where it calls nothing. Some files, such as MiniMind's, hold the list as a
/// text.
pub(super) fn beside(said: &Value) -> Result<Option<Value>, Refusal> {
    let mut found: Option<Value> = None;
    for calls in FIELDS.iter().filter_map(|field| said.get(field)) {
        let Some(calls) = in_field(calls)? else { continue };
        match &found {
            None => found = Some(calls),
            Some(first) if functions(first).eq(functions(&calls)) => {}
            Some(_) => return dropped("a message has tool_calls and function_call, and they differ"),
        }
    }
    Ok(found)
}

/// The calls in a field of a message, if there are any.
fn in_field(field: &Value) -> Result<Option<Value>, Refusal> {
    let calls = match field {
        Value::String(text) if text.trim().is_empty() => Value::Null,
        Value::String(text) => match serde_json::from_str(text.trim()) {
            Ok(calls) => calls,
            Err(_) => return dropped(BROKEN),
        },
        calls => calls.clone(),
    };
    match calls {
        Value::Null => Ok(None),
        Value::Array(calls) if calls.is_empty() => Ok(None),
        Value::Array(calls) => with_objects(&calls).map(Some),
        call @ Value::Object(_) => with_objects(&[call]).map(Some),
        _ => dropped(BROKEN),
    }
}

/// Names and arguments of calls, with the wrapper that some files put around them or without.
fn functions(calls: &Value) -> impl Iterator<Item = (&Value, &Value)> {
    let calls = calls.as_array().into_iter().flatten();
    calls.map(|call| call.get("function").unwrap_or(call)).map(|call| (&call["name"], &call["arguments"]))
}

/// OpenAI's calls, their arguments as objects where they are texts that hold one.
fn with_objects(calls: &[Value]) -> Result<Value, Refusal> {
    let mut out = Vec::with_capacity(calls.len());
    for call in calls {
        let mut call = call.clone();
        let function = match call.get_mut("function") {
            Some(function) => function,
            None => &mut call,
        };
        if let Some(Value::String(text)) = function.get("arguments") {
            match serde_json::from_str::<Value>(text) {
                Ok(object @ Value::Object(_)) => function["arguments"] = object,
                _ => return dropped(BROKEN),
            }
        }
        if !is_call(function) {
            return dropped(BROKEN);
        }
        out.push(call);
    }
    Ok(Value::Array(out))
}

/// The schema of a function, without the wrapper that some files put around it.
pub(in super::super) fn function_of(tool: &Value) -> &Value {
    match tool.get("function") {
        Some(function) if tool["type"] == "function" => function,
        _ => tool,
    }
}

fn is_call(call: &Value) -> bool {
    call.get("name").is_some_and(Value::is_string) && call.get("arguments").is_some()
}

/// The first text from one mark to the next other one, with the marks and without.
fn between<'t>(text: &'t str, (begin, end): (&str, &str)) -> Option<(&'t str, &'t str)> {
    let from = text.find(begin)?;
    let inside = from + begin.len();
    let until = inside + text[inside..].find(end)?;
    Some((&text[from..until + end.len()], &text[inside..until]))
}

/// Functions: a JSON list, which may be empty, or a text that holds one.
pub(super) fn tools(written: Option<&Value>) -> std::result::Result<Option<Value>, Refusal> {
    let parsed = match written {
        None => return Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(tools) => tools,
            Err(_) => return dropped("its tools are not JSON (Invalid JSON format in tool description)"),
        },
        Some(tools) => tools.clone(),
    };
    let list = match parsed {
        Value::Array(list) => list,
        tool => vec![tool],
    };
    match list.iter().all(|tool| function_of(tool)["name"].is_string()) {
        true => Ok(Some(Value::Array(list))),
        false => dropped("its tools are not a list of functions with names"),
    }
}
