//! The tokens that the files beside `tokenizer.json` add to it, by the rules of transformers.

use std::path::Path;

use oarlock_config::config::NewTokens;
use oarlock_config::json;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::{Error, Result};
use crate::gguf;

/// A token that is found in texts before they are split.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct AddedToken {
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    /// Where nothing is written, all but special tokens are normalized.
    normalized: Option<bool>,
    #[serde(default)]
    pub(super) special: bool,
}

impl AddedToken {
    /// One that is found wherever its text stands.
    fn new(content: &str, special: bool) -> AddedToken {
        let content = content.to_owned();
        AddedToken { content, single_word: false, lstrip: false, rstrip: false, normalized: None, special }
    }

    pub(super) fn is_normalized(&self) -> bool {
        self.normalized.unwrap_or(!self.special)
    }

    /// It as `tokenizer.json` lists it.
    fn numbered(&self, id: u32) -> Value {
        json!({
            "id": id, "content": self.content, "single_word": self.single_word, "lstrip": self.lstrip,
            "rstrip": self.rstrip, "normalized": self.is_normalized(), "special": self.special,
        })
    }

    fn is_same(&self, other: &AddedToken) -> bool {
        let whole =
            |token: &AddedToken| AddedToken { normalized: Some(token.is_normalized()), ..token.clone() };
        whole(self) == whole(other)
    }
}

/// Where tokens stand by their ids.
const NUMBERED: &str = "added_tokens_decoder";
/// The tokens with a name; in the order in which transformers adds them.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The lists of others, under the names of its versions 4 and 5.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The settings of a tokenizer: `tokenizer_config.json`, and where that does not number tokens, as in older folders, also
/// `special_tokens_map.json`.
///
/// # Errors
/// A file that cannot be read or is not JSON.
pub(super) fn settings(dir: &Path) -> Result<Map<String, Value>> {
    let mut settings = match side_file(dir, "tokenizer_config.json")? {
        Value::Object(settings) => settings,
        _ => Map::new(),
    };
    if !settings.contains_key(NUMBERED)
        && let Value::Object(more) = side_file(dir, "special_tokens_map.json")?
    {
        for (name, token) in more {
            let place = settings.entry(name).or_insert(Value::Null);
            if place.is_null() {
                *place = token;
            }
        }
    }
    Ok(settings)
}

/// What the folder `dir`, whose settings are `config`, adds to the tokens `known` of `tokenizer.json`; a token that is there
/// with other properties gets these.
///
/// # Errors
/// A token that is not a text and no object with a text `content`, and a side file that is not JSON.
pub(super) fn beside(
    dir: &Path,
    config: &Map<String, Value>,
    known: &[AddedToken],
) -> Result<Vec<AddedToken>> {
    let file = dir.join("tokenizer_config.json");
    let special = specials(&file, config)?;
    let mut added = match config.get(NUMBERED) {
        Some(Value::Object(tokens)) => numbered(&file, tokens)?,
        // Older folders have a file instead.
        _ => {
            let numbers = side_file(dir, "added_tokens.json")?;
            let mut tokens: Vec<(u64, AddedToken)> = (numbers.as_object().into_iter().flatten())
                .filter_map(|(token, id)| {
                    let is_special = special.iter().any(|special| special.content == *token);
                    Some((id.as_u64()?, AddedToken::new(token, is_special)))
                })
                .collect();
            tokens.sort_by_key(|(id, _)| *id);
            tokens.into_iter().map(|(_, token)| token).collect()
        }
    };
    added.retain(|token| !known.iter().any(|known| known.is_same(token)));
    for token in special {
        if !known.iter().chain(&added).any(|known| known.content == token.content) {
            added.push(token);
        }
    }
    added.retain(|token| !token.content.is_empty());
    Ok(added)
}

/// Adds the tokens of a run behind the others; whether one of them is new.
pub(super) fn add_new(added: &mut Vec<AddedToken>, known: &[AddedToken], new: &NewTokens) -> bool {
    let n_before = added.len();
    for (tokens, special) in [(&new.tokens, false), (&new.special, true)] {
        for token in tokens.iter().filter(|token| !token.is_empty()) {
            if !known.iter().chain(&*added).any(|known| known.content == *token) {
                added.push(AddedToken::new(token, special));
            }
        }
    }
    added.len() > n_before
}

/// `tokenizer.json` with these tokens among the others.
pub(super) fn listed(
    json: &[u8],
    added: &[AddedToken],
    id_of: impl Fn(&AddedToken) -> Option<u32>,
) -> serde_json::Result<String> {
    let mut json: Value = serde_json::from_slice(json)?;
    let mut tokens = json["added_tokens"].as_array().cloned().unwrap_or_default();
    for (token, id) in added.iter().filter_map(|token| Some((token, id_of(token)?))) {
        tokens.retain(|known| known["content"] != token.content.as_str());
        tokens.push(token.numbered(id));
    }
    tokens.sort_by_key(|token| token["id"].as_u64());
    json["added_tokens"] = Value::Array(tokens);
    Ok(format!("{json:#}\n"))
}

/// `added_tokens_decoder`: tokens by their ids. The order of the ids counts; what ids they get depends on those that are
/// there.
fn numbered(file: &Path, tokens: &Map<String, Value>) -> Result<Vec<AddedToken>> {
    let mut found = Vec::with_capacity(tokens.len());
    for (id, token) in tokens {
        let Ok(id) = id.parse::<u64>() else {
            return Err(wrong(file, &format!("added_tokens_decoder has \"{id}\" where an id is expected")));
        };
        let token: AddedToken = serde_json::from_value(token.clone())
            .map_err(|e| wrong(file, &format!("token {id} of added_tokens_decoder: {e}")))?;
        found.push((id, token));
    }
    found.sort_by_key(|(id, _)| *id);
    Ok(found.into_iter().map(|(_, token)| token).collect())
}

/// The special tokens: those with a name, then those of the lists.
fn specials(file: &Path, config: &Map<String, Value>) -> Result<Vec<AddedToken>> {
    let token = |key: &str, value: &Value| -> Result<Option<AddedToken>> {
        match value {
            Value::Null => Ok(None),
            Value::String(content) => Ok(Some(AddedToken::new(content, true))),
            Value::Object(_) => match serde_json::from_value::<AddedToken>(value.clone()) {
                Ok(token) => Ok(Some(AddedToken { special: true, ..token })),
                Err(e) => Err(wrong(file, &format!("{key}: {e}"))),
            },
            other => Err(wrong(file, &format!("{key} holds {other}"))),
        }
    };
    let mut found = Vec::new();
    for name in NAMED {
        // `Tokenizer::open` explains those that it needs.
        let value = config.get(name).filter(|value| value.is_string() || value["content"].is_string());
        found.extend(value.map(|value| token(name, value)).transpose()?.flatten());
    }
    for name in LISTS {
        match config.get(name) {
            Some(Value::Array(tokens)) => {
                for value in tokens {
                    found.extend(token(name, value)?);
                }
            }
            // Tokens with names of the model's own.
            Some(Value::Object(tokens)) => {
                for value in tokens.values() {
                    found.extend(token(name, value)?);
                }
            }
            None | Some(Value::Null) => {}
            Some(other) => return Err(wrong(file, &format!("{name} is {other}"))),
        }
    }
    Ok(found)
}

/// A JSON file that may be missing.
pub(super) fn side_file(dir: &Path, name: &str) -> Result<Value> {
    let path = dir.join(name);
    match gguf::read_file(&path, oarlock_comm::MAX_CONFIG_BYTES) {
        Ok(bytes) => json::from_slice(&bytes).map_err(|e| Error::Tokenizer {
            path,
            cause: format!("broken JSON: {e}; repair or remove the file"),
        }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(e) => Err(Error::read(&path, e)),
    }
}

fn wrong(file: &Path, cause: &str) -> Error {
    let cause = format!("{cause}; write a token as a text, or as an object with a text `content`");
    Error::Tokenizer { path: file.into(), cause }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tokenizer::{Tokenizer, tests::small};

    /// The ids of `text` in a folder whose side files are these.
    fn ids(files: &[(&str, serde_json::Value)], text: &str) -> Result<Vec<u32>, String> {
        let (dir, _) = small();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content.to_string()).unwrap();
        }
        let opened = Tokenizer::open(dir.path()).map_err(|e| e.to_string())?;
        opened.encode(text).map_err(|e| e.to_string())
    }

    #[test]
    fn tokens_of_the_side_files_are_added() {
        let n = small().1.vocab_size().unwrap() as u32;
        let config = "tokenizer_config.json";
        let tool = json!({"content": "<tool>", "special": false, "normalized": false});
        let end = "</end>";
        // Wherever a token stands, it gets the next id; those with a number come first, by their numbers.
        for files in [
            vec![(config, json!({"added_tokens_decoder": {"400": tool}}))],
            vec![(config, json!({"additional_special_tokens": ["<tool>"]}))],
            vec![(config, json!({"extra_special_tokens": [{"content": "<tool>"}]}))],
            vec![(config, json!({"extra_special_tokens": {"tool_token": "<tool>"}}))],
            vec![(config, json!({"pad_token": "<tool>"}))],
            vec![(config, json!({})), ("added_tokens.json", json!({"<tool>": 400}))],
            vec![
                (config, json!({})),
                ("special_tokens_map.json", json!({"unk_token": {"content": "<tool>"}})),
            ],
        ] {
            assert_eq!(ids(&files, "<tool>").unwrap(), [n], "{files:?}");
        }
        let files = [(
            config,
            json!({"added_tokens_decoder": {"900": tool, "88": {"content": end}}, "pad_token": "[PAD]"}),
        )];
        assert_eq!(ids(&files, "<tool></end>[PAD]").unwrap(), [n + 1, n, n + 2]);
        // What the newer files say excludes the older ones.
        let files = [
            (config, json!({"added_tokens_decoder": {"400": tool}})),
            ("added_tokens.json", json!({"</end>": 401})),
        ];
        assert_eq!(ids(&files, "<tool>").unwrap(), [n]);
        assert!(ids(&files, end).unwrap().iter().all(|id| *id < n));
    }

    #[test]
    fn a_word_of_the_vocabulary_becomes_a_token_of_its_own() {
        let (dir, tokenizer) = small();
        let the = tokenizer.id_of("the").unwrap().unwrap();
        assert_ne!(tokenizer.encode("xthex").unwrap().iter().filter(|id| **id == the).count(), 0);
        let config = json!({"sep_token": "the"}).to_string();
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        assert_eq!(Tokenizer::open(dir.path()).unwrap().encode("thethe").unwrap(), [the, the]);
    }

    #[test]
    fn properties_of_a_known_token_are_replaced() {
        let strip = json!({"content": "<think>", "lstrip": true, "special": false, "normalized": false});
        let files = [("tokenizer_config.json", json!({"added_tokens_decoder": {"25": strip}}))];
        assert_eq!(ids(&files, "  <think>").unwrap(), [25]);
        assert_ne!(ids(&[], "  <think>").unwrap(), [25]);
    }

    #[test]
    fn what_is_no_token_is_explained() {
        let config = "tokenizer_config.json";
        for (wrong, message) in [
            (json!({"added_tokens_decoder": {"x": {"content": "a"}}}), "has \"x\" where an id is expected"),
            (
                json!({"added_tokens_decoder": {"5": {"text": "a"}}}),
                "token 5 of added_tokens_decoder: missing field",
            ),
            (json!({"additional_special_tokens": [7]}), "additional_special_tokens holds 7"),
            (json!({"extra_special_tokens": "a"}), "extra_special_tokens is \"a\""),
        ] {
            let error = ids(&[(config, wrong)], "a").unwrap_err();
            assert!(error.contains(message) && error.contains("tokenizer_config.json: "), "{error}");
        }
    }
}
