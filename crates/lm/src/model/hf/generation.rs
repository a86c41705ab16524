//! What `generation_config.json` says beside a model.

use std::path::Path;

use serde_json::Value;

use oarlock_config::json;
use oarlock_engine::{Error, Result};

use crate::gguf;

/// The tokens that end an answer by the `generation_config.json` of a folder; none where there is no such file.
///
/// # Errors
/// A file that cannot be read or is not JSON.
pub fn generation_stops(dir: &Path) -> Result<Vec<u32>> {
    let config = read(dir)?;
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    Ok(match &config["eos_token_id"] {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    })
}

/// Settings that commands which generate have flags for.
const OF_FLAGS: [&str; 5] = ["do_sample", "temperature", "top_p", "top_k", "repetition_penalty"];
/// Settings that say nothing of which tokens are drawn, or only how many.
const SAYS_NOTHING: [&str; 11] = [
    "_from_model_config",
    "assistant_early_exit",
    "bos_token_id",
    "cache_implementation",
    "decoder_start_token_id",
    "eos_token_id",
    "max_length",
    "max_new_tokens",
    "pad_token_id",
    "transformers_version",
    "use_cache",
];

/// A line about what the `generation_config.json` of a folder asks for and a command that generates does not follow; none
/// where that is nothing.
///
/// # Errors
/// A file that cannot be read or is not JSON.
pub fn generation_note(dir: &Path) -> Result<Option<String>> {
    let config = read(dir)?;
    // What changes nothing where it stands.
    let is_neutral = |name: &str, value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Number(number) => match name {
            "top_k" => number.as_f64() == Some(50.0),
            "temperature"
            | "top_p"
            | "typical_p"
            | "repetition_penalty"
            | "length_penalty"
            | "num_beams"
            | "num_beam_groups"
            | "num_return_sequences"
            | "encoder_repetition_penalty" => number.as_f64() == Some(1.0),
            _ => number.as_f64() == Some(0.0),
        },
        _ => SAYS_NOTHING.contains(&name),
    };
    let asked: Vec<(&String, &Value)> = (config.as_object().into_iter().flatten())
        .filter(|(name, value)| !SAYS_NOTHING.contains(&name.as_str()) && !is_neutral(name, value))
        .collect();
    let listed = |of_flags: bool| {
        let of = asked.iter().filter(|(name, _)| OF_FLAGS.contains(&name.as_str()) == of_flags);
        of.map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ")
    };
    let (flags, unread) = (listed(true), listed(false));
    let mut parts = Vec::new();
    if !flags.is_empty() {
        parts.push(format!("{flags} is for the flags of this command to say"));
    }
    if !unread.is_empty() {
        parts.push(format!("nothing follows {unread}"));
    }
    Ok((!parts.is_empty())
        .then(|| format!("note: of {}: {}", dir.join("generation_config.json").display(), parts.join("; "))))
}

/// The file of a folder; null where there is none.
fn read(dir: &Path) -> Result<Value> {
    let path = dir.join("generation_config.json");
    let text = match gguf::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(e) => return Err(Error::io("read", &path)(e)),
    };
    json::from_str(&text).map_err(|e| Error::bad_file(&path, e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_id_and_several_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
        assert!(generation_stops(dir.path()).unwrap().is_empty());
        write(r#"{"eos_token_id": 7}"#);
        assert_eq!(generation_stops(dir.path()).unwrap(), [7]);
        write(r#"{"eos_token_id": [7, 9]}"#);
        assert_eq!(generation_stops(dir.path()).unwrap(), [7, 9]);
        write(r#"{"eos_token_id": null}"#);
        assert!(generation_stops(dir.path()).unwrap().is_empty());
        write("{");
        assert!(generation_stops(dir.path()).is_err());
    }

    #[test]
    fn settings_that_are_not_followed_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let warnings = |text: &str| {
            std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
            generation_note(dir.path()).unwrap().unwrap_or_default()
        };
        assert_eq!(
            warnings(r#"{"eos_token_id": 7, "top_k": 50, "temperature": 1.0, "num_beams": 1, "x": null}"#),
            ""
        );
        let said =
            warnings(r#"{"do_sample": true, "temperature": 0.6, "num_beams": 4, "suppress_tokens": [3]}"#);
        assert!(said.contains("do_sample: true, temperature: 0.6 is for the flags"), "{said}");
        assert!(said.contains("nothing follows num_beams: 4, suppress_tokens: [3]"), "{said}");
    }
}
