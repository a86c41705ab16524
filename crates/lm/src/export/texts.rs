//! The texts beside exported weights: a `Modelfile`, the settings of the tokenizer, and the chat template where one is named.

use std::path::Path;

use oarlock_config::config::ChatArgs;
use oarlock_config::json_edit::edited;
use oarlock_engine::{Error, Result};
use serde_json::json;

use super::modelfile::modelfile;
use crate::adapters::{TemplateFiles, side_text, stop_ids, template_files};
use crate::data::{Chat, ChatTemplate, Tokenizer};
use crate::model::HfConfig;
use crate::model::hf::generation_stops;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Where templates of more kinds of conversations lie.
const ADDITIONAL: &str = "additional_chat_templates";

/// What is written beside the weights.
pub(super) struct Texts {
    /// The files that are not copies.
    pub files: TemplateFiles,
    /// The copy that they replace.
    pub left_out: Option<&'static str>,
    /// The chat template of the model, if it has one.
    pub template: Option<ChatTemplate>,
    /// What is to be said about it.
    pub warnings: Vec<String>,
}

/// The `Modelfile`, the settings of the tokenizer, and the chat template where one is named. That of the folder stays where it
/// writes the same: it may write more, such as calls.
pub(super) fn beside_weights(
    dir: &Path,
    hf: &HfConfig,
    tokenizer: &Tokenizer,
    args: Option<&ChatArgs>,
) -> Result<Texts> {
    let chat = args.map(|args| Chat::new(tokenizer, dir, args, usize::MAX)).transpose()?;
    let mut stops = hf.special().eos.clone();
    stops.extend(generation_stops(dir)?);
    stops.extend(tokenizer.special().eos);
    let own = ChatTemplate::read(dir).ok();
    let mut warnings = Vec::new();
    if let Some(chat) = &chat {
        stops.extend(stop_ids(chat, tokenizer, hf)?);
        warnings.extend(chat.disagreement(tokenizer, dir)?);
    }
    let (mut files, template) = match &chat {
        Some(chat) if own.is_none() || !warnings.is_empty() => {
            (template_files(chat, tokenizer, dir, hf)?, Some(chat.prompts(tokenizer, dir)?))
        }
        _ => (TemplateFiles::new(), own),
    };
    stops.sort_unstable();
    stops.dedup();
    // Padding on the left, where answers are generated.
    let path = dir.join(TOKENIZER_CONFIG);
    let mut left = vec![("padding_side", Some("left".into()))];
    // A template in a folder of its own moves beside the other one, as transformers reads several from one file.
    let joins = files.is_empty() && dir.join(ADDITIONAL).is_dir();
    let mut left_out = None;
    if let (true, (Some(default), Some(with_tools))) = (joins, ChatTemplate::texts(dir)?) {
        let named = [("default", default), ("tool_use", with_tools)];
        let list = named.map(|(name, template)| json!({"name": name, "template": template}));
        left.push(("chat_template", Some(json!(list))));
        left_out = Some("chat_template.jinja");
    }
    let words = chat.as_ref().map_or(&[][..], Chat::stop_words);
    let (text, warning) = modelfile(template.as_ref(), tokenizer, &stops, words);
    files.push(("Modelfile", text));
    warnings.extend(warning);
    match files.iter_mut().find(|(name, _)| *name == TOKENIZER_CONFIG) {
        Some((_, text)) => *text = edited(text, &left).map_err(|e| Error::bad_file(&path, e.to_string()))?,
        None => {
            let own = side_text(dir, TOKENIZER_CONFIG)?.map(|text| edited(&text, &left)).transpose();
            let own = own.map_err(|e| Error::bad_file(&path, e.to_string()))?;
            files.extend(own.map(|text| (TOKENIZER_CONFIG, text)));
        }
    }
    Ok(Texts { files, left_out, template, warnings })
}
