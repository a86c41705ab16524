//! What is saved beside a model that was trained with a layout, so that it is talked to as it was trained: the chat
//! template, the end token, the tokens that end an answer.

use std::path::Path;

use oarlock_config::json;
use oarlock_engine::{Error, Result};
use serde_json::{Map, Value, json};

use crate::data::{Chat, Tokenizer};
use crate::model::hf::HfConfig;

/// Files with their texts, which replace those of the tokenizer.
pub type TemplateFiles = Vec<(&'static str, String)>;

/// The files for a model of the tokenizer in `dir`.
///
/// # Errors
/// A tokenizer that cannot be used, and files that are not JSON.
pub fn template_files(
    chat: &Chat,
    tokenizer: &Tokenizer,
    dir: &Path,
    hf: &HfConfig,
) -> Result<TemplateFiles> {
    let Some(template) = chat.template(tokenizer)? else { return Ok(Vec::new()) };
    let end = chat.end_token(tokenizer)?;
    let mut config = object(dir, "tokenizer_config.json")?.unwrap_or_default();
    // The file of its own has the word.
    config.remove("chat_template");
    if let Some(id) = end.filter(|id| Some(*id) != tokenizer.special().eos) {
        config.insert("eos_token".to_owned(), json!(tokenizer.decode(&[id], false)?));
    }
    let mut generation = match object(dir, "generation_config.json")? {
        Some(generation) => generation,
        None => serde_json::from_str(&hf.generation_json()).unwrap_or_default(),
    };
    let ids = stop_ids(chat, tokenizer, hf)?;
    if !ids.is_empty() {
        generation.insert("eos_token_id".to_owned(), if ids.len() == 1 { json!(ids[0]) } else { json!(ids) });
    }
    let text = |map: Map<String, Value>| format!("{:#}\n", Value::Object(map));
    Ok(vec![
        ("chat_template.jinja", template),
        ("tokenizer_config.json", text(config)),
        ("generation_config.json", text(generation)),
    ])
}

/// The tokens that end an answer: the end token first, then the stop words of the template and the model's own.
///
/// # Errors
/// A tokenizer that cannot be used.
pub fn stop_ids(chat: &Chat, tokenizer: &Tokenizer, hf: &HfConfig) -> Result<Vec<u32>> {
    let mut ids: Vec<u32> = chat.end_token(tokenizer)?.into_iter().collect();
    for word in chat.stop_words() {
        ids.extend(tokenizer.id_of(word)?);
    }
    ids.extend(tokenizer.special().eos);
    ids.extend(&hf.special().eos);
    let mut seen = Vec::new();
    ids.retain(|id| {
        !seen.contains(id) && {
            seen.push(*id);
            true
        }
    });
    Ok(ids)
}

/// A JSON file of a folder; `None` where there is none.
fn object(dir: &Path, name: &str) -> Result<Option<Map<String, Value>>> {
    let path = dir.join(name);
    match oarlock_comm::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES) {
        Ok(text) => json::from_str(&text).map(Some).map_err(|e| Error::bad_file(&path, e.to_string())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("read", &path)(e)),
    }
}
