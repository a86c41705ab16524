//! What is saved beside a model that was trained with a layout, so that it is talked to as it was trained: the chat
//! template, the end token, the tokens that end an answer.

use std::path::Path;

use oarlock_config::json_edit::edited;
use oarlock_engine::{Error, Result};
use serde_json::{Value, json};

use crate::data::{Chat, Tokenizer};
use crate::gguf;
use crate::model::hf::HfConfig;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

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
    let edit = |name: &str, text: &str, edits: &[(&str, Option<Value>)]| {
        edited(text, edits).map_err(|e| Error::bad_file(dir.join(name), e.to_string()))
    };
    // The template that has a file of its own counts alone.
    let mut changes = vec![("chat_template", None)];
    if let Some(id) = end.filter(|id| Some(*id) != tokenizer.special().eos) {
        changes.push(("eos_token", Some(json!(tokenizer.decode(&[id], false)?))));
    }
    let config = side_text(dir, TOKENIZER_CONFIG)?.unwrap_or_else(|| "{}\n".to_owned());
    let generation = side_text(dir, GENERATION_CONFIG)?.unwrap_or_else(|| hf.generation_json());
    let stops = stop_ids(chat, tokenizer, hf)?;
    let stops = match &stops[..] {
        [] => None,
        [one] => Some(json!(one)),
        several => Some(json!(several)),
    };
    let stops: Vec<_> = stops.into_iter().map(|ids| ("eos_token_id", Some(ids))).collect();
    Ok(vec![
        ("chat_template.jinja", template),
        (TOKENIZER_CONFIG, edit(TOKENIZER_CONFIG, &config, &changes)?),
        (GENERATION_CONFIG, edit(GENERATION_CONFIG, &generation, &stops)?),
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

/// The text of a file beside the weights of a folder; `None` where there is none.
///
/// # Errors
/// A file that cannot be read.
pub fn side_text(dir: &Path, name: &str) -> Result<Option<String>> {
    let path = dir.join(name);
    match gguf::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("read", &path)(e)),
    }
}
