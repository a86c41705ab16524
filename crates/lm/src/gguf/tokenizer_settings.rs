//! The `tokenizer_config.json` and the `generation_config.json` that the keys of a GGUF file stand for.

use oarlock_gguf::Gguf;
use serde_json::{Map, Value, json};

use super::parts::{Found, shown};
use super::tokens::Tokens;

/// Tokens that end an answer in llama.cpp whatever the keys of a file say, where they have a meaning of their own.
const ENDS: [&str; 11] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
];

/// # Errors
/// Keys of another kind than llama.cpp has, and ids of no token.
pub(super) fn of(gguf: &Gguf<&[u8]>) -> Found<String> {
    let tokens = Tokens::of(gguf)?;
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    for (name, key) in [
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("unk_token", "unknown_token_id"),
        ("pad_token", "padding_token_id"),
    ] {
        if let Some((_, text)) = tokens.special(gguf, key)? {
            set(name, json!(text));
        }
    }
    for name in ["add_bos_token", "add_eos_token"] {
        if let Some(adds) = gguf.get::<bool>(&format!("tokenizer.ggml.{name}")).map_err(shown)? {
            set(name, json!(adds));
        }
    }
    let text = |key: &str| gguf.get::<&str>(key).map_err(shown);
    let default = text("tokenizer.chat_template")?;
    match (text("tokenizer.chat_template.tool_use")?, default) {
        (Some(with_tools), default) => {
            let named = |name: &str, template: &str| json!({"name": name, "template": template});
            let default = default.map(|template| named("default", template));
            set("chat_template", default.into_iter().chain([named("tool_use", with_tools)]).collect());
        }
        (None, Some(template)) => set("chat_template", json!(template)),
        (None, None) => {}
    }
    set("clean_up_tokenization_spaces", json!(false));
    set("tokenizer_class", json!("PreTrainedTokenizerFast"));
    Ok(Value::Object(fields).to_string())
}

/// # Errors
/// Ids of no token.
pub(super) fn generation(gguf: &Gguf<&[u8]>) -> Found<String> {
    let tokens = Tokens::of(gguf)?;
    let mut ends: Vec<u32> = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ends.extend(tokens.special(gguf, key)?.map(|(id, _)| id));
    }
    let known =
        tokens.texts.iter().enumerate().filter(|(id, text)| ENDS.contains(text) && tokens.is_control(*id));
    ends.extend(known.map(|(id, _)| id as u32));
    let mut seen = Vec::new();
    ends.retain(|id| {
        !seen.contains(id) && {
            seen.push(*id);
            true
        }
    });
    Ok(json!({"eos_token_id": ends}).to_string())
}
