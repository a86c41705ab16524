//! The `Modelfile` beside an exported model, with which Ollama runs it.

use std::collections::BTreeSet;

use super::ollama::of_ollama;
use crate::data::{ChatTemplate, Tokenizer};

/// Tokens that Ollama gives a conversation.
const NUM_CTX: usize = 4096;

/// The text of the file for a model. The template is what its chat template makes of a system prompt, functions, questions,
/// thoughts, answers, calls and results; without one, or with one that renders them otherwise depending on their text, Ollama
/// takes its own, which the second text says, as what of it a template of Ollama cannot write. Answers end at these tokens and words, and at the token that the template writes behind an answer.
pub(super) fn modelfile(
    template: Option<&ChatTemplate>,
    tokenizer: &Tokenizer,
    stop_ids: &[u32],
    stop_words: &[String],
) -> (String, Option<String>) {
    let mut text = "# ollama modelfile written by oarlock\n\nFROM .\n\n".to_owned();
    let mut stop_ids: Vec<u32> = stop_ids.to_vec();
    let of_ollama = template.map(|template| of_ollama(template, tokenizer));
    let warning = match &of_ollama {
        Some(None) => Some(
            "note: the Modelfile has no TEMPLATE: a template of Ollama cannot say what the chat template writes; Ollama takes one \
             of its own, if it knows the model"
                .to_owned(),
        ),
        Some(Some(template)) if !template.lacks.is_empty() => {
            let lacks = template.lacks.join(", ");
            text.push_str(&format!("# Not in this template, though in the chat template: {lacks}\n\n"));
            Some(format!("note: the TEMPLATE of the Modelfile does not write what the chat template does of {lacks}"))
        }
        _ => None,
    };
    if let Some(template) = of_ollama.flatten() {
        text.push_str(&format!("TEMPLATE \"\"\"{}\"\"\"\n\n", template.text));
        let behind = tokenizer.encode(template.behind_answer.trim_start()).unwrap_or_default();
        let ends = |id: &u32| tokenizer.is_special(*id).unwrap_or(false);
        stop_ids.extend(behind.first().copied().filter(ends));
    }
    // A token that cannot be written as text stops nothing.
    let of_tokens = stop_ids.iter().filter_map(|id| tokenizer.decode(&[*id], false).ok());
    let mut seen = BTreeSet::new();
    for stop in of_tokens.chain(stop_words.iter().cloned()) {
        // A parameter is one line.
        if !stop.is_empty() && !stop.contains(['\n', '\r']) && seen.insert(stop.clone()) {
            text.push_str(&format!("PARAMETER stop \"{}\"\n", stop.replace('"', "\\\"")));
        }
    }
    text.push_str(&format!("PARAMETER num_ctx {NUM_CTX}\n"));
    (text, warning)
}
