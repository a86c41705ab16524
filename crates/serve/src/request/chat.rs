//! A request for an answer to a conversation.

use serde_json::{Map, Value};

use super::form::{Wanted, form};
use super::generation::{Generation, max_tokens};
use super::message::messages;
use super::tools::{Must, tools};
use crate::backend::Model;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::form::Form;
use crate::options::Options;

/// The most alternatives that a token comes with.
const MOST_ALTERNATIVES: i64 = 20;

/// The most variables of a template that a request sets.
const MOST_TEMPLATE_OPTIONS: usize = 64;

/// A request of a chat.
#[derive(Clone, Debug)]
pub(crate) struct ChatRequest {
    pub(crate) conversation: Conversation,
    /// What an answer has to be.
    pub(crate) form: Option<Wanted<Form>>,
    pub(crate) generation: Generation,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) ends_after_call: bool,
}

impl ChatRequest {
    pub(crate) fn read(
        mut fields: Fields,
        model: &Model,
        options: &Options,
    ) -> Result<ChatRequest, ApiError> {
        let (conversation, must) = conversation(&mut fields, options)?;
        let modalities = fields.list("modalities")?.unwrap_or_default();
        if modalities.iter().any(|modality| modality != "text") {
            return Err(ApiError::unsupported("modalities", "The only modality is text."));
        }
        let mut generation = Generation::read(&mut fields, model, &options.limits)?;
        let ends_after_call = fields.boolean("parallel_tool_calls")? == Some(false);
        let form = form(generation.text.take(), &conversation.tools, must, ends_after_call);
        let has_logprobs = fields.boolean("logprobs")?.unwrap_or(false);
        let n_alternatives = fields.integer("top_logprobs", 0..=MOST_ALTERNATIVES)?;
        if n_alternatives.is_some_and(|n| n > 0) && !has_logprobs {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs: true`."));
        }
        let n_alternatives = usize::try_from(n_alternatives.unwrap_or(0)).unwrap_or(0);
        let wanted = max_tokens(&mut fields, &["max_completion_tokens", "max_tokens"], 1)?;
        Ok(ChatRequest {
            conversation,
            form,
            generation,
            max_tokens: wanted.or(options.max_tokens),
            logprobs: has_logprobs.then_some(n_alternatives),
            ends_after_call,
        })
    }
}

/// The conversation of a request, and whether its answer has to call something.
pub(crate) fn conversation(fields: &mut Fields, options: &Options) -> Result<(Conversation, Must), ApiError> {
    let messages = messages(fields, &options.limits)?;
    let continues_final_message = fields.boolean("continue_final_message")?.unwrap_or(false);
    let adds_generation_prompt = fields.boolean("add_generation_prompt")?;
    if continues_final_message && adds_generation_prompt == Some(true) {
        return Err(ApiError::field(
            "continue_final_message",
            "`continue_final_message` and `add_generation_prompt` exclude each other.",
        ));
    }
    let (tools, must) = tools(fields, &options.limits)?;
    let conversation = Conversation {
        messages,
        tools,
        template_options: template_options(fields)?,
        adds_generation_prompt: adds_generation_prompt.unwrap_or(!continues_final_message),
        continues_final_message,
    };
    Ok((conversation, must))
}

/// Variables of the template. `enable_thinking` and MiniMind's `open_thinking` say the same, and a template has one of them.
pub(crate) fn template_options(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut options = fields.fields("chat_template_kwargs")?.map_or_else(Map::new, Fields::into_object);
    for name in ["messages", "tools", "add_generation_prompt", "continue_final_message"] {
        if options.contains_key(name) {
            let message = format!("`{name}` is a field of the request, not of `chat_template_kwargs`.");
            return Err(ApiError::field("chat_template_kwargs", message));
        }
    }
    if options.len() > MOST_TEMPLATE_OPTIONS {
        return Err(crate::fields::too_many("chat_template_kwargs", options.len(), MOST_TEMPLATE_OPTIONS));
    }
    let effort = fields.string("reasoning_effort")?;
    let mut thinks = None;
    for name in ["open_thinking", "enable_thinking"] {
        thinks = fields.boolean(name)?.or(thinks);
    }
    let thinks = thinks.or((effort.as_deref() == Some("none")).then_some(false));
    let of_fields = [
        ("enable_thinking", thinks.map(Value::Bool)),
        ("open_thinking", thinks.map(Value::Bool)),
        ("reasoning_effort", effort.map(Value::String)),
    ];
    for (name, value) in of_fields {
        if let Some(value) = value {
            options.entry(name).or_insert(value);
        }
    }
    for (name, other) in [("enable_thinking", "open_thinking"), ("open_thinking", "enable_thinking")] {
        if let Some(value) = options.get(other).cloned() {
            options.entry(name).or_insert(value);
        }
    }
    Ok(options)
}
