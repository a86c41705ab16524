//! A request of OpenAI's Responses API, read as a chat. Nothing is stored: each request has the whole conversation.

use serde_json::{Map, Value, json};

use super::chat::{ChatRequest, template_options};
use super::form::{Wanted, form, of_format};
use super::generation::{Generation, max_tokens};
use super::message::text;
use super::tools::{Must, check, choose};
use crate::backend::Model;
use crate::conversation::{Call, Conversation, Message, Role, Tool};
use crate::error::{ApiError, excerpt};
use crate::fields::{Fields, too_many, wrong};
use crate::form::TextForm;
use crate::options::Options;

/// The chat that a request asks for, and the fields of it that the answer repeats.
pub(crate) fn read(
    mut fields: Fields,
    model: &Model,
    options: &Options,
) -> Result<(ChatRequest, Map<String, Value>), ApiError> {
    for name in ["previous_response_id", "conversation", "prompt"] {
        if fields.take(name).is_some() {
            let message = format!("`{name}` is not supported: nothing is stored here.");
            return Err(ApiError::unsupported(name, message));
        }
    }
    if fields.boolean("background")? == Some(true) {
        return Err(ApiError::unsupported("background", "`background` is not supported."));
    }
    if fields.integer("top_logprobs", 0..=20)?.is_some_and(|n| n > 0) {
        return Err(ApiError::unsupported("top_logprobs", "`top_logprobs` is not supported here."));
    }
    let (text, shown_format) = text_form(&mut fields)?;
    let mut messages = Vec::new();
    let instructions = fields.string("instructions")?;
    messages.extend(instructions.clone().map(|text| message(Role::System, text)));
    let input = fields.take("input").ok_or_else(|| fields.missing("input"))?;
    read_input(input, options, &mut messages)?;
    let (all_tools, choice) = (tools(&mut fields)?, fields.take("tool_choice"));
    check(&all_tools, &options.limits)?;
    let flat: Vec<Value> = all_tools.iter().map(flat).collect();
    let shown_choice = choice.clone().unwrap_or_else(|| json!("auto"));
    let (tools, must) = match choice {
        Some(choice) => choose(nested(choice), all_tools)?,
        None => (all_tools, Must::Nothing),
    };
    let mut reasoning = fields.fields("reasoning")?;
    let effort = reasoning.as_mut().map(|reasoning| reasoning.string("effort")).transpose()?.flatten();
    if reasoning.is_some() {
        fields.set("reasoning_effort", effort.as_deref().map_or(Value::Null, Value::from));
    }
    let is_parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let wanted = max_tokens(&mut fields, &["max_output_tokens"], 1)?;
    let form = form(text, &tools, must, !is_parallel);
    let chat = ChatRequest {
        conversation: Conversation {
            messages,
            tools,
            template_options: template_options(&mut fields)?,
            adds_generation_prompt: true,
            continues_final_message: false,
        },
        form,
        // This API knows one answer.
        generation: Generation { n_answers: 1, ..Generation::read(&mut fields, model, &options.limits)? },
        max_tokens: wanted.or(options.max_tokens),
        logprobs: None,
        ends_after_call: !is_parallel,
    };
    let sampling = &chat.generation.sampling;
    let repeated = json!({
        "instructions": instructions,
        "max_output_tokens": wanted,
        "metadata": fields.take("metadata").unwrap_or_else(|| json!({})),
        "parallel_tool_calls": is_parallel,
        "previous_response_id": null,
        "reasoning": { "effort": effort, "summary": null },
        "store": false,
        "temperature": sampling.temperature,
        "text": { "format": shown_format },
        "tool_choice": shown_choice,
        "tools": flat,
        "top_p": sampling.top_p,
        "truncation": "disabled",
    });
    let Value::Object(repeated) = repeated else { return Err(ApiError::failed("The answer has no form.")) };
    Ok((chat, repeated))
}

fn message(role: Role, content: String) -> Message {
    Message { role, content, name: None, reasoning: None, calls: Vec::new(), call_id: None }
}

/// What the text of an answer has to be, and the format that says so, as it came.
fn text_form(fields: &mut Fields) -> Result<(Option<Wanted<TextForm>>, Value), ApiError> {
    let text = fields.fields("text")?;
    let Some(mut text) = text else { return Ok((None, json!({ "type": "text" }))) };
    let Some(format) = text.take("format") else { return Ok((None, json!({ "type": "text" }))) };
    let form = of_format(Fields::of(format.clone(), text.param("format"))?)?;
    Ok((form.map(|what| Wanted { what, param: "text.format" }), format))
}

fn read_input(input: Value, options: &Options, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let items = match input {
        Value::String(text) => {
            messages.push(message(Role::User, text));
            return Ok(());
        }
        Value::Array(items) => items,
        other => return Err(wrong("input", "a string or a list of items", &other)),
    };
    if items.is_empty() {
        return Err(ApiError::field("input", "`input` is empty."));
    }
    if items.len() > options.limits.n_messages {
        return Err(too_many("input", items.len(), options.limits.n_messages));
    }
    for (index, item) in items.into_iter().enumerate() {
        read_item(Fields::of(item, format!("input[{index}]"))?, messages)?;
    }
    Ok(())
}

fn read_item(mut item: Fields, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let kind = item.string("type")?.unwrap_or_else(|| "message".to_owned());
    match kind.as_str() {
        "message" => {
            let role = match item.required_string("role")?.as_str() {
                "system" | "developer" => Role::System,
                "user" => Role::User,
                "assistant" => Role::Assistant,
                other => {
                    let text = format!("Invalid role `{}`.", excerpt(other));
                    return Err(ApiError::field(item.param("role"), text));
                }
            };
            let content = item.take("content").ok_or_else(|| item.missing("content"))?;
            let content = text(content, &item.param("content"))?;
            // Thoughts come before their text.
            let is_thought_alone = |last: &&mut Message| {
                let is_answer = last.role == Role::Assistant && last.reasoning.is_some();
                is_answer && last.content.is_empty() && last.calls.is_empty()
            };
            match messages.last_mut().filter(is_thought_alone).filter(|_| role == Role::Assistant) {
                Some(last) => last.content = content,
                None => messages.push(message(role, content)),
            }
        }
        "function_call" => {
            let call = Call {
                id: Some(item.required_string("call_id")?),
                name: item.required_string("name")?,
                arguments: item.required_string("arguments")?,
            };
            if messages.last().is_none_or(|last| last.role != Role::Assistant) {
                messages.push(message(Role::Assistant, String::new()));
            }
            if let Some(last) = messages.last_mut() {
                last.calls.push(call);
            }
        }
        "function_call_output" => {
            let call_id = Some(item.required_string("call_id")?);
            let output = item.take("output").ok_or_else(|| item.missing("output"))?;
            let content = text(output, &item.param("output"))?;
            messages.push(Message { call_id, ..message(Role::Tool, content) });
        }
        "reasoning" => {
            let mut thoughts = Vec::new();
            for part in item.list("content")?.unwrap_or_default() {
                let mut part = Fields::of(part, item.param("content"))?;
                thoughts.extend(part.string("text")?);
            }
            if !thoughts.is_empty() {
                let reasoning = Some(thoughts.join("\n"));
                messages.push(Message { reasoning, ..message(Role::Assistant, String::new()) });
            }
        }
        other => {
            let text = format!("Items of type `{}` are not supported.", excerpt(other));
            return Err(ApiError::unsupported(item.param("type"), text));
        }
    }
    Ok(())
}

/// Functions have no object of their own here.
fn tools(fields: &mut Fields) -> Result<Vec<Tool>, ApiError> {
    let tool = |(index, value)| {
        let mut tool = Fields::of(value, format!("tools[{index}]"))?;
        let kind = tool.required_string("type")?;
        if kind != "function" {
            let message = format!("Tools of type `{}` are not supported.", excerpt(&kind));
            return Err(ApiError::unsupported(tool.param("type"), message));
        }
        let name = tool.required_string("name")?;
        let mut function = Map::new();
        function.insert("name".to_owned(), json!(name));
        function.extend(tool.into_object().into_iter().filter(|(_, value)| !value.is_null()));
        Ok(Tool { name, definition: json!({ "type": "function", "function": function }) })
    };
    fields.list("tools")?.unwrap_or_default().into_iter().enumerate().map(tool).collect()
}

/// A function as it came.
fn flat(tool: &Tool) -> Value {
    let mut flat = Map::new();
    flat.insert("type".to_owned(), json!("function"));
    for (name, default) in [("parameters", json!({})), ("strict", json!(false))] {
        flat.insert(name.to_owned(), default);
    }
    if let Some(function) = tool.definition.get("function").and_then(Value::as_object) {
        flat.extend(function.clone());
    }
    Value::Object(flat)
}

/// A choice among tools as chats have it.
fn nested(choice: Value) -> Value {
    match choice.get("type").and_then(Value::as_str) {
        Some("allowed_tools") if choice.get("allowed_tools").is_none() => {
            json!({ "type": "allowed_tools", "allowed_tools": choice })
        }
        _ => choice,
    }
}
