//! The `Modelfile` beside an exported model, with which Ollama runs it.

use crate::data::{ChatTemplate, Conversation, Message, Tokenizer};

/// Tokens that Ollama gives a conversation.
const NUM_CTX: usize = 4096;

const SYSTEM: &str = "{{ .System }}";
const CONTENT: &str = "{{ .Content }}";

/// The text of the file for a model. The template is what its chat template makes of a system prompt, questions and answers;
/// without one, or with one that renders them otherwise depending on their text, Ollama
/// takes its own.
pub(super) fn modelfile(template: Option<&ChatTemplate>, tokenizer: &Tokenizer, stop_ids: &[u32]) -> String {
    let mut text = "# ollama modelfile written by oarlock\n\nFROM .\n\n".to_owned();
    if let Some(template) = template.and_then(of_ollama) {
        text.push_str(&format!("TEMPLATE \"\"\"{template}\"\"\"\n\n"));
    }
    for id in stop_ids {
        // A token that cannot be written as text stops nothing.
        if let Ok(stop) = tokenizer.decode(&[*id], false) {
            text.push_str(&format!("PARAMETER stop \"{}\"\n", stop.replace('"', "\\\"")));
        }
    }
    text.push_str(&format!("PARAMETER num_ctx {NUM_CTX}\n"));
    text
}

/// A chat template in the language of Ollama, found by what it makes of its placeholders.
fn of_ollama(template: &ChatTemplate) -> Option<String> {
    let user = || Message::new("user", CONTENT);
    let prompt = |system: Option<&str>, messages: Vec<Message>| {
        let conversation = Conversation { system: system.map(str::to_owned), tools: None, messages };
        template.render_prompt(&conversation).ok()
    };
    let one = prompt(None, vec![user()])?;
    let two = prompt(None, vec![user(), Message::new("assistant", "{{ .Answer }}"), user()])?;
    // The second question comes after the first and its answer, and ends as the first does.
    let rest = two.strip_prefix(&one)?;
    let (answer, question) = {
        let end = rest.find("{{ .Answer }}")? + "{{ .Answer }}".len();
        let behind = &rest[end..];
        let common = one.bytes().rev().zip(behind.bytes().rev()).take_while(|(a, b)| a == b).count();
        let mut at = behind.len() - common;
        while !behind.is_char_boundary(at) {
            at += 1;
        }
        (&rest[..end + at], &behind[at..])
    };
    if !question.contains(CONTENT) {
        return None;
    }
    let prefix = one.strip_suffix(question)?;
    let rendered = prompt(Some(SYSTEM), vec![user()]);
    let system = rendered
        .as_deref()
        .and_then(|rendered| rendered.strip_suffix(question))
        .filter(|rendered| rendered.contains(SYSTEM));
    let answer = answer.replace("{{ .Answer }}", CONTENT);
    let begin = match system {
        Some(system) => format!("{{{{ if .System }}}}{system}{{{{ else }}}}{prefix}{{{{ end }}}}"),
        None => prefix.to_owned(),
    };
    Some(format!(
        "{begin}{{{{ range .Messages }}}}{{{{ if eq .Role \"user\" }}}}{question}{{{{ else if eq .Role \"assistant\" \
         }}}}{answer}{{{{ end }}}}{{{{ end }}}}"
    ))
}
