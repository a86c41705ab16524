//! Messages of a conversation, in the forms that OpenAI's clients write them.

use serde_json::Value;

use crate::conversation::{Call, Message, Role};
use crate::error::{ApiError, excerpt};
use crate::fields::{Fields, too_many, wrong};
use crate::options::Limits;

/// The messages of a request.
pub(crate) fn messages(fields: &mut Fields, limits: &Limits) -> Result<Vec<Message>, ApiError> {
    let list = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if list.is_empty() {
        return Err(ApiError::field("messages", "`messages` is empty."));
    }
    if list.len() > limits.n_messages {
        return Err(too_many("messages", list.len(), limits.n_messages));
    }
    let numbered = list.into_iter().enumerate();
    numbered.map(|(index, value)| message(Fields::of(value, format!("messages[{index}]"))?, limits)).collect()
}

fn message(mut fields: Fields, limits: &Limits) -> Result<Message, ApiError> {
    let role = role(&mut fields)?;
    let calls = calls(&mut fields, limits)?;
    let content = match fields.take("content") {
        // An answer may be calls alone; nothing else may be empty.
        None if role == Role::Assistant => String::new(),
        None => return Err(fields.missing("content")),
        Some(content) => text(content, &fields.param("content"))?,
    };
    let reasoning = fields.string("reasoning_content")?;
    Ok(Message {
        role,
        content,
        name: fields.string("name")?,
        reasoning: reasoning.or(fields.string("reasoning")?),
        calls,
        call_id: fields.string("tool_call_id")?,
    })
}

fn role(fields: &mut Fields) -> Result<Role, ApiError> {
    let name = fields.required_string("role")?;
    match name.as_str() {
        "system" | "developer" => Ok(Role::System),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "tool" | "function" => Ok(Role::Tool),
        other => {
            let param = fields.param("role");
            let other = excerpt(other);
            Err(ApiError::field(
                param,
                format!(
                    "Invalid role `{other}`: it is system, developer, user, assistant, tool or function."
                ),
            ))
        }
    }
}

/// A text, or its parts joined by line ends. Pictures and sounds are refused.
pub(crate) fn text(content: Value, param: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong(param, "a string or a list of parts", &other)),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let param = format!("{param}[{index}]");
        if let Value::String(text) = part {
            texts.push(text);
            continue;
        }
        let mut part = Fields::of(part, param.as_str())?;
        match part.required_string("type")?.as_str() {
            "text" | "input_text" | "output_text" => texts.push(part.required_string("text")?),
            "refusal" => texts.push(part.required_string("refusal")?),
            other => {
                let message = format!("Parts of type `{}` are not supported; text is.", excerpt(other));
                return Err(ApiError::unsupported(param, message));
            }
        }
    }
    Ok(texts.join("\n"))
}

fn calls(fields: &mut Fields, limits: &Limits) -> Result<Vec<Call>, ApiError> {
    let list = fields.list("tool_calls")?.unwrap_or_default();
    let param = fields.param("tool_calls");
    if list.len() > limits.n_tools {
        return Err(too_many(&param, list.len(), limits.n_tools));
    }
    let call = |(index, value)| {
        let mut call = Fields::of(value, format!("{param}[{index}]"))?;
        let id = call.string("id")?;
        let mut function = call.fields("function")?.ok_or_else(|| call.missing("function"))?;
        let name = function.required_string("name")?;
        let arguments = match function.take("arguments") {
            None => "{}".to_owned(),
            Some(Value::String(arguments)) => arguments,
            // Not what the API says, but what some clients send.
            Some(arguments) => arguments.to_string(),
        };
        Ok(Call { id, name, arguments })
    };
    list.into_iter().enumerate().map(call).collect()
}
