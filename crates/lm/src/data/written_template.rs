//! Where a tokenizer folder has its chat templates.

use std::path::{Path, PathBuf};

use oarlock_config::json;
use serde_json::Value;

use super::added_tokens::settings;
use super::error::{Error, Result};
use crate::gguf;

/// The Jinja text of a template, and its file.
pub(super) type Text = (String, PathBuf);

/// The templates of a folder.
pub(super) struct WrittenTemplate {
    /// The one of every conversation.
    pub(super) default: Text,
    /// The one of conversations with functions, where that is another (`tool_use`).
    pub(super) with_tools: Option<Text>,
}

impl WrittenTemplate {
    /// `chat_template.jinja`, or else what `tokenizer_config.json` says, a text or a list of named ones, or else the text in
    /// `chat_template.json`; beside these the files in `additional_chat_templates`. `None` where there is none.
    ///
    /// # Errors
    /// Files that cannot be read or are not JSON, and several templates of which none is the default.
    pub(super) fn find(dir: &Path) -> Result<Option<WrittenTemplate>> {
        let (of_config, of_json) = (dir.join("tokenizer_config.json"), dir.join("chat_template.json"));
        let config = settings(dir).map_err(as_template)?;
        let (mut default, mut with_tools) = (text(&dir.join("chat_template.jinja"))?, None);
        match config.get("chat_template") {
            Some(Value::String(template)) => default = default.or(Some((template.clone(), of_config))),
            Some(Value::Array(named)) => {
                let of_name = |name: &str| {
                    let found = named.iter().find(|template| template["name"] == name)?;
                    Some((found["template"].as_str()?.to_owned(), of_config.clone()))
                };
                if default.is_none() {
                    with_tools = of_name("tool_use");
                    default = of_name("default");
                }
                if default.is_none() && !named.is_empty() {
                    let names: Vec<&str> = named.iter().filter_map(|t| t["name"].as_str()).collect();
                    let cause = format!(
                        "of its chat templates ({}) none is named default; rename the one to use",
                        names.join(", ")
                    );
                    return Err(Error::Template { path: of_config, cause });
                }
            }
            None | Some(Value::Null) => {}
            Some(other) => {
                let cause = format!("chat_template is {other}; write a text, or a list of named ones");
                return Err(Error::Template { path: of_config, cause });
            }
        }
        if default.is_none()
            && let Some((json, path)) = text(&of_json)?
        {
            let parsed: Value = json::from_str(&json)
                .map_err(|e| Error::Template { path: path.clone(), cause: e.to_string() })?;
            default = parsed["chat_template"].as_str().map(|template| (template.to_owned(), path));
        }
        let Some(default) = default else { return Ok(None) };
        let beside = text(&dir.join("additional_chat_templates").join("tool_use.jinja"))?;
        Ok(Some(WrittenTemplate { default, with_tools: beside.or(with_tools) }))
    }
}

/// A file that may be missing.
fn text(path: &Path) -> Result<Option<Text>> {
    match gguf::read_text(path, oarlock_comm::MAX_CONFIG_BYTES) {
        Ok(text) => Ok(Some((text, path.to_owned()))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::read(path, e)),
    }
}

/// What is wrong with `tokenizer_config.json` as an error of the template in it.
fn as_template(error: Error) -> Error {
    match error {
        Error::Tokenizer { path, cause } => Error::Template { path, cause },
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::example::{Conversation, Example, Message};
    use super::super::sft::{Chat, Outcome};
    use super::super::template::ChatTemplate;
    use super::super::tokenizer::tests::small;
    use oarlock_config::config::ChatArgs;

    fn rendered(dir: &Path, tools: bool) -> String {
        let tools = tools.then(|| json!([{"name": "tide"}]));
        let messages = vec![Message::new("user", "Hi")];
        let conversation = Conversation { tools, messages, system: None };
        ChatTemplate::read(dir).unwrap().render_prompt(&conversation).unwrap()
    }

    #[test]
    fn templates_are_found_in_every_place() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        let config = |template: serde_json::Value| {
            write("tokenizer_config.json", &json!({"chat_template": template}).to_string());
        };
        assert!(!ChatTemplate::is_in(dir).unwrap());
        write("chat_template.json", r#"{"chat_template": "json"}"#);
        assert_eq!(rendered(dir, true), "json");
        config(json!("config"));
        assert_eq!(rendered(dir, false), "config");
        config(json!([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]));
        assert_eq!((rendered(dir, false), rendered(dir, true)), ("named".into(), "tools".into()));
        config(json!([{"name": "rag", "template": "x"}]));
        let error = ChatTemplate::read(dir).unwrap_err().to_string();
        assert!(error.contains("of its chat templates (rag) none is named default"), "{error}");
        config(json!(5));
        assert!(ChatTemplate::read(dir).unwrap_err().to_string().contains("chat_template is 5"));
        config(json!(null));
        write("chat_template.jinja", "file");
        assert_eq!(rendered(dir, true), "file");
        std::fs::create_dir(dir.join("additional_chat_templates")).unwrap();
        write("additional_chat_templates/tool_use.jinja", "beside");
        assert_eq!((rendered(dir, false), rendered(dir, true)), ("file".into(), "beside".into()));
    }

    #[test]
    fn calls_that_a_template_does_not_write_are_not_learned_as_silence() {
        let (dir, tokenizer) = small();
        let dir = dir.path();
        let template =
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>{% endfor %}";
        std::fs::write(dir.join("chat_template.jinja"), template).unwrap();
        let mut called = Message::new("assistant", "");
        called.extra.insert("tool_calls".into(), json!([{"name": "tide", "arguments": {}}]));
        let conversation = |answer: Message| {
            let tools = Some(json!([{"name": "tide"}]));
            Example::Conversation(Conversation {
                tools,
                messages: vec![Message::new("user", "Hi"), answer],
                system: None,
            })
        };
        let own = Chat::new(&tokenizer, dir, &ChatArgs::default(), 64).unwrap();
        let Outcome::Dropped(reason) = own.encode(&tokenizer, &conversation(called.clone())).unwrap() else {
            panic!("silence is supervised")
        };
        assert!(reason.contains("does not write calls"), "{reason}");
        let mut said = Message::new("assistant", "Hello");
        said.extra.insert("weight".into(), json!(0.5));
        let unread = own.unread(&conversation(said));
        assert!(unread[0].starts_with("\"tools\"") && unread[1] == "\"weight\" of messages", "{unread:?}");
        let named = ChatArgs { template: Some("qwen".into()), ..ChatArgs::default() };
        let named = Chat::new(&tokenizer, dir, &named, 400).unwrap();
        assert!(matches!(named.encode(&tokenizer, &conversation(called)).unwrap(), Outcome::Encoded(..)));
    }
}
