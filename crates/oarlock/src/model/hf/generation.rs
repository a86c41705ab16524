//! What `generation_config.json` says beside a model.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};

/// The tokens that end an answer by the `generation_config.json` of a folder; none where there is no such file.
///
/// # Errors
/// A file that cannot be read or is no JSON.
pub fn generation_stops(dir: &Path) -> Result<Vec<u32>> {
    let path = dir.join("generation_config.json");
    let text = match oarlock_comm::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io("read", &path)(e)),
    };
    let config: Value = serde_json::from_str(&text).map_err(|e| Error::bad_file(&path, e.to_string()))?;
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    Ok(match &config["eos_token_id"] {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    })
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
}
