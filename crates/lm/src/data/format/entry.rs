//! The format that an entry of `dataset_info.json` describes. Where `columns` or `tags` are there at all, those that
//! they do not name are none, as in LLaMA-Factory.

use serde_json::{Map, Value};

use super::columns::{Columns, Format, Kind, Tags};

/// What is wrong with an entry, and what to do.
type Wrong = (String, &'static str);

/// What to do about a name that is unknown.
const NAMES: &str = "columns has prompt, query, response, history, messages, system, tools, images, videos, audios, chosen, \
                     rejected and kto_tag; tags has role_tag, content_tag, user_tag, assistant_tag, observation_tag, \
                     function_tag and system_tag";

/// Names as an object of the entry gives them: what is named, and the name or none.
type Names<'e> = Vec<(&'e str, Option<String>)>;

impl Format {
    /// Reads `formatting`, `ranking`, `columns` and `tags`.
    pub(in super::super) fn of_entry(entry: &Map<String, Value>) -> Result<Format, Wrong> {
        let kind = match entry.get("formatting") {
            None | Some(Value::Null) => Kind::Alpaca,
            Some(Value::String(name)) => match name.as_str() {
                "alpaca" => Kind::Alpaca,
                "sharegpt" => Kind::ShareGpt,
                "openai" => Kind::OpenAi,
                name => {
                    return Err((
                        format!("Dataset converter {name} not found"),
                        "write alpaca, sharegpt or openai",
                    ));
                }
            },
            Some(other) => {
                return Err((format!("formatting is {other}"), "write alpaca, sharegpt or openai"));
            }
        };
        let ranking = match entry.get("ranking") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(ranking)) => *ranking,
            Some(other) => return Err((format!("ranking is {other}"), "write true or false")),
        };
        let mut columns = Columns::default_names();
        if let Some(named) = texts(entry, "columns")? {
            columns = Columns::none();
            for (name, column) in named {
                *columns.place(name).ok_or_else(|| unknown("columns", name))? = column;
            }
        }
        let mut tags = Tags::default_names();
        if let Some(named) = texts(entry, "tags")? {
            tags = Tags::none();
            for (name, tag) in named {
                *tags.place(name).ok_or_else(|| unknown("tags", name))? = tag;
            }
        }
        if kind != Kind::Alpaca {
            let are_lists = ranking && columns.chosen.is_some() && columns.rejected.is_some();
            if columns.messages.is_none() && !are_lists {
                return Err((
                    "columns names no messages".into(),
                    "name the list of messages: {\"messages\": \"...\"}",
                ));
            }
            let needed = [
                ("role_tag", &tags.role),
                ("content_tag", &tags.content),
                ("user_tag", &tags.user),
                ("assistant_tag", &tags.assistant),
            ];
            if let Some((name, _)) = needed.into_iter().find(|(_, tag)| tag.is_none()) {
                let cause = format!("tags names no {name}, and tags that it does not name are none");
                return Err((
                    cause,
                    "name role_tag, content_tag, user_tag and assistant_tag, too, or remove tags",
                ));
            }
        }
        if ranking && (columns.chosen.is_none() || columns.rejected.is_none()) {
            return Err((
                "ranking is true, and columns names no chosen or no rejected".into(),
                "name both columns",
            ));
        }
        Ok(Format { kind, ranking, columns, tags })
    }
}

/// The names that an object of the entry gives; null for none.
fn texts<'e>(entry: &'e Map<String, Value>, key: &str) -> Result<Option<Names<'e>>, Wrong> {
    let object = match entry.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(object)) => object,
        Some(other) => return Err((format!("{key} is {other}"), "write an object of names")),
    };
    let mut found = Vec::with_capacity(object.len());
    for (name, value) in object {
        match value {
            Value::Null => found.push((name.as_str(), None)),
            Value::String(text) => found.push((name.as_str(), Some(text.clone()))),
            other => return Err((format!("{key}.{name} is {other}"), "write it as a string")),
        }
    }
    Ok(Some(found))
}

fn unknown(key: &str, name: &str) -> Wrong {
    (format!("{key} names {name}, which is unknown"), NAMES)
}

impl Columns {
    fn place(&mut self, name: &str) -> Option<&mut Option<String>> {
        Some(match name {
            "prompt" => &mut self.prompt,
            "query" => &mut self.query,
            "response" => &mut self.response,
            "history" => &mut self.history,
            "messages" => &mut self.messages,
            "system" => &mut self.system,
            "tools" => &mut self.tools,
            "images" => &mut self.images,
            "videos" => &mut self.videos,
            "audios" => &mut self.audios,
            "chosen" => &mut self.chosen,
            "rejected" => &mut self.rejected,
            "kto_tag" => &mut self.kto_tag,
            _ => return None,
        })
    }
}

impl Tags {
    fn place(&mut self, name: &str) -> Option<&mut Option<String>> {
        Some(match name {
            "role_tag" => &mut self.role,
            "content_tag" => &mut self.content,
            "user_tag" => &mut self.user,
            "assistant_tag" => &mut self.assistant,
            "observation_tag" => &mut self.observation,
            "function_tag" => &mut self.function,
            "system_tag" => &mut self.system,
            _ => return None,
        })
    }
}
