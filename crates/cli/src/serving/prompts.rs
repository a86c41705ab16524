//! Conversations of the server as prompts of a chat template.

use oarlock::data::{self, ChatTemplate};
use oarlock_serve::{AnswerFormat, CallMarks, Conversation, Message, Refusal, Role, ThoughtMarks};
use serde_json::{Map, Value, json};

/// The marks of thoughts and calls that templates have.
const THINK: (&str, &str) = ("<think>", "</think>");
const CALL: (&str, &str) = ("<tool_call>", "</tool_call>");

/// The text of a prompt.
///
/// # Errors
/// What the template refuses, and variables that it is not told.
pub fn text(template: &ChatTemplate, conversation: &Conversation) -> Result<String, Refusal> {
    let wrong = |message: String, param: &str| Refusal::Invalid { message, param: Some(param.to_owned()) };
    let template =
        match thinks(&conversation.template_options).map_err(|m| wrong(m, "chat_template_kwargs"))? {
            Some(on) => &template.clone().thinking(on),
            None => template,
        };
    let mut of = data::Conversation::default();
    let mut messages = &conversation.messages[..];
    if let [Message { role: Role::System, content, .. }, rest @ ..] = messages {
        (of.system, messages) = (Some(content.clone()), rest);
    }
    if !conversation.tools.is_empty() {
        of.tools = Some(conversation.tools.iter().map(|tool| tool.definition.clone()).collect());
    }
    let last = if conversation.continues_final_message { messages.split_last() } else { None };
    let before = last.map_or(messages, |(_, before)| before);
    of.messages = before.iter().map(message).collect();
    let refused = |error: data::Error| wrong(error.to_string(), "messages");
    if let Some((last, _)) = last {
        return Ok(template.render_prompt(&of).map_err(refused)? + &last.content);
    }
    match conversation.adds_generation_prompt {
        true => template.render_prompt(&of).map_err(refused),
        false => template.render(&of).map(|rendered| rendered.text).map_err(refused),
    }
}

/// What has a meaning in the answer to a prompt.
pub fn answer_format(template: &ChatTemplate, prompt: &str) -> AnswerFormat {
    let marks = |(open, close): (&str, &str)| (open.to_owned(), close.to_owned());
    let thoughts = template.mentions(THINK.0).then(|| {
        let (open, close) = marks(THINK);
        ThoughtMarks { open, close, is_open: prompt.trim_end().ends_with(THINK.0) }
    });
    let (open, close) = marks(CALL);
    let calls = match template.mentions(CALL.0) {
        true => CallMarks { open, close: Some(close), is_only_first: false },
        // Without marks the whole answer may be calls.
        false => CallMarks { open: String::new(), close: None, is_only_first: false },
    };
    AnswerFormat { thoughts, calls: Some(calls) }
}

/// `enable_thinking`, the one variable that templates are told beside the conversation.
fn thinks(options: &Map<String, Value>) -> Result<Option<bool>, String> {
    let mut thinks = None;
    for (name, value) in options {
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("enable_thinking", Value::Bool(on)) => thinks = Some(*on),
            ("enable_thinking", other) => {
                return Err(format!("enable_thinking is {other}; expected true or false"));
            }
            (name, _) => return Err(format!("the template is told enable_thinking alone, and not {name}")),
        }
    }
    Ok(thinks)
}

/// A message as templates take it.
fn message(message: &Message) -> data::Message {
    let mut of = data::Message::new(message.role.name(), message.content.clone());
    let mut set = |name: &str, value: Value| drop(of.extra.insert(name.to_owned(), value));
    if let Some(name) = &message.name {
        set("name", json!(name));
    }
    if let Some(reasoning) = &message.reasoning {
        set("reasoning_content", json!(reasoning));
    }
    if let Some(id) = &message.call_id {
        set("tool_call_id", json!(id));
    }
    if !message.calls.is_empty() {
        let call = |call: &oarlock_serve::Call| {
            // Templates write arguments as JSON, and a text would be quoted once more.
            let arguments: Value = serde_json::from_str(&call.arguments)
                .unwrap_or_else(|_| Value::String(call.arguments.clone()));
            let mut of = json!({"type": "function", "function": {"name": call.name, "arguments": arguments}});
            if let Some(id) = &call.id {
                of["id"] = json!(id);
            }
            of
        };
        set("tool_calls", message.calls.iter().map(call).collect());
    }
    of
}
