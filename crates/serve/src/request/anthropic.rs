//! A request of Anthropic's API, read as a chat.

use serde_json::{Map, Value, json};

use super::chat::ChatRequest;
use super::form::{Wanted, form, of_format};
use super::generation::{Generation, max_tokens};
use super::tools::{Must, call_of, check, choose as of_choice};
use crate::backend::Model;
use crate::conversation::{Call, Conversation, Message, Role, Tool};
use crate::error::{ApiError, excerpt};
use crate::fields::{Fields, too_many, wrong};
use crate::form::TextForm;
use crate::options::Options;

/// The chat that a request asks for. `max_tokens` may be missing where only the prompt matters.
pub(crate) fn read(
    mut fields: Fields,
    model: &Model,
    options: &Options,
    needs_max_tokens: bool,
) -> Result<ChatRequest, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        messages.push(message(Role::System, super::message::text(system, "system")?));
    }
    let list = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if list.is_empty() {
        return Err(ApiError::field("messages", "`messages` is empty."));
    }
    if list.len() > options.limits.n_messages {
        return Err(too_many("messages", list.len(), options.limits.n_messages));
    }
    for (index, value) in list.into_iter().enumerate() {
        read_message(Fields::of(value, format!("messages[{index}]"))?, &mut messages)?;
    }
    // A beginning of the answer is gone on with.
    let continues_final_message = messages.last().is_some_and(|last| last.role == Role::Assistant);
    let tools = tools(&mut fields)?;
    check(&tools, &options.limits)?;
    let (tools, must, ends_after_call) = choose(&mut fields, tools)?;
    let form = form(text_form(&mut fields)?, &tools, must, ends_after_call);
    fields.rename("stop_sequences", "stop");
    let wanted = max_tokens(&mut fields, &["max_tokens"], 1)?;
    if wanted.is_none() && needs_max_tokens {
        return Err(fields.missing("max_tokens"));
    }
    Ok(ChatRequest {
        conversation: Conversation {
            messages,
            tools,
            template_options: template_options(&mut fields)?,
            adds_generation_prompt: !continues_final_message,
            continues_final_message,
        },
        form,
        // This API knows one answer.
        generation: Generation { n_answers: 1, ..Generation::read(&mut fields, model, &options.limits)? },
        max_tokens: wanted.or(options.max_tokens),
        logprobs: None,
        ends_after_call,
    })
}

fn message(role: Role, content: String) -> Message {
    Message { role, content, name: None, reasoning: None, calls: Vec::new(), call_id: None }
}

/// A message may hold results of functions, which are messages of their own here, before its text.
fn read_message(mut fields: Fields, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let role = match fields.required_string("role")?.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        other => {
            let message = format!("Invalid role `{}`: it is user or assistant.", excerpt(other));
            return Err(ApiError::field(fields.param("role"), message));
        }
    };
    let param = fields.param("content");
    let blocks = match fields.take("content").ok_or_else(|| fields.missing("content"))? {
        Value::String(text) => {
            messages.push(message(role, text));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(wrong(&param, "a string or a list of blocks", &other)),
    };
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    let mut n_results = 0;
    for (index, block) in blocks.into_iter().enumerate() {
        let mut block = Fields::of(block, format!("{param}[{index}]"))?;
        match block.required_string("type")?.as_str() {
            "text" => texts.push(block.required_string("text")?),
            "thinking" => thoughts.push(block.required_string("thinking")?),
            // Of these nobody but their maker knows what they say.
            "redacted_thinking" => {}
            "tool_use" => calls.push(Call {
                id: block.string("id")?,
                name: block.required_string("name")?,
                arguments: block.take("input").unwrap_or_else(|| json!({})).to_string(),
            }),
            "tool_result" => {
                let call_id = Some(block.required_string("tool_use_id")?);
                let content = block.take("content").unwrap_or_else(|| json!(""));
                let content = super::message::text(content, &block.param("content"))?;
                messages.push(Message { call_id, ..message(Role::Tool, content) });
                n_results += 1;
            }
            other => {
                let message = format!("Blocks of type `{}` are not supported.", excerpt(other));
                return Err(ApiError::unsupported(block.param("type"), message));
            }
        }
    }
    if n_results == 0 || !texts.is_empty() {
        let reasoning = (!thoughts.is_empty()).then(|| thoughts.join("\n"));
        messages.push(Message { reasoning, calls, ..message(role, texts.join("\n")) });
    }
    Ok(())
}

fn tools(fields: &mut Fields) -> Result<Vec<Tool>, ApiError> {
    let tool = |(index, value)| {
        let mut tool = Fields::of(value, format!("tools[{index}]"))?;
        if let Some(kind) = tool.string("type")?.filter(|kind| kind != "custom") {
            let message = format!("Tools of type `{}` are not supported.", excerpt(&kind));
            return Err(ApiError::unsupported(tool.param("type"), message));
        }
        let name = tool.required_string("name")?;
        let mut function = Map::new();
        function.insert("name".to_owned(), json!(name));
        for (from, to) in
            [("description", "description"), ("input_schema", "parameters"), ("strict", "strict")]
        {
            if let Some(value) = tool.take(from) {
                function.insert(to.to_owned(), value);
            }
        }
        Ok(Tool { name, definition: json!({ "type": "function", "function": function }) })
    };
    fields.list("tools")?.unwrap_or_default().into_iter().enumerate().map(tool).collect()
}

/// The functions that are left by a choice, whether one has to be called, and whether an answer ends behind its first call.
fn choose(fields: &mut Fields, tools: Vec<Tool>) -> Result<(Vec<Tool>, Must, bool), ApiError> {
    let Some(mut choice) = fields.fields("tool_choice")? else { return Ok((tools, Must::Nothing, false)) };
    let ends_after_call = choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
    let kind = choice.required_string("type")?;
    let (tools, must) = match kind.as_str() {
        "tool" => call_of(choice.required_string("name")?, tools)?,
        "any" => of_choice(json!("required"), tools)?,
        "auto" | "none" => of_choice(json!(kind), tools)?,
        other => {
            let message =
                format!("`tool_choice.type` is `auto`, `any`, `tool` or `none`, not `{}`.", excerpt(other));
            return Err(ApiError::unsupported("tool_choice", message));
        }
    };
    Ok((tools, must, ends_after_call))
}

/// What the text of an answer has to be, by either name that the field has had.
fn text_form(fields: &mut Fields) -> Result<Option<Wanted<TextForm>>, ApiError> {
    let mut config = fields.fields("output_config")?;
    let format = config.as_mut().map(|config| config.fields("format")).transpose()?.flatten();
    let (format, param) = match format {
        Some(format) => (Some(format), "output_config"),
        None => (fields.fields("output_format")?, "output_format"),
    };
    Ok(format.map(of_format).transpose()?.flatten().map(|what| Wanted { what, param }))
}

fn template_options(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut options = Map::new();
    if let Some(mut thinking) = fields.fields("thinking")? {
        let thinks = thinking.required_string("type")? != "disabled";
        options.insert("enable_thinking".to_owned(), json!(thinks));
        options.insert("open_thinking".to_owned(), json!(thinks));
    }
    Ok(options)
}
