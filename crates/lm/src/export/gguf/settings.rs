//! What `config.json` of a folder says, by the names of Hugging Face.

use std::path::{Path, PathBuf};

use oarlock_config::json;
use oarlock_engine::{Error, Result};
use serde_json::{Map, Value};

use crate::gguf;

/// The settings of a model.
pub(super) struct Settings {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl Settings {
    pub(super) fn read(dir: &Path) -> Result<Settings> {
        let path = dir.join("config.json");
        let text =
            gguf::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES).map_err(Error::io("read", &path))?;
        let fields = json::from_str(&text).map_err(|e| Error::bad_file(&path, e.to_string()))?;
        Ok(Settings { path, fields })
    }

    /// The settings with these fields, for tests.
    #[cfg(test)]
    pub(super) fn of(fields: Value) -> Settings {
        Settings { path: "config.json".into(), fields: fields.as_object().cloned().unwrap_or_default() }
    }

    /// What GGUF cannot say, as an error of the file.
    pub(super) fn refuse(&self, what: impl std::fmt::Display) -> Error {
        Error::bad_file(&self.path, format!("GGUF cannot hold this model: {what}"))
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    pub(super) fn u32(&self, name: &str) -> Result<Option<u32>> {
        let whole = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        self.get(name)
            .map(|value| whole(value).ok_or_else(|| self.wrong(name, value, "a whole number")))
            .transpose()
    }

    pub(super) fn required_u32(&self, name: &str) -> Result<u32> {
        self.u32(name)?
            .ok_or_else(|| Error::bad_file(&self.path, format!("{name} is missing; expected a whole number")))
    }

    pub(super) fn f32(&self, name: &str) -> Result<Option<f32>> {
        self.get(name)
            .map(|value| value.as_f64().map(|x| x as f32).ok_or_else(|| self.wrong(name, value, "a number")))
            .transpose()
    }

    /// A field of the rotary settings: in `rope_parameters` or `rope_scaling`, or beside them. Where layers of two kinds have
    /// their own, it is that of full attention.
    pub(super) fn rope(&self, name: &str) -> Option<&Value> {
        let full = |part: &'static str| {
            let settings = self.get(part)?;
            settings.get("full_attention").unwrap_or(settings).get(name).filter(|value| !value.is_null())
        };
        full("rope_parameters").or_else(|| full("rope_scaling")).or_else(|| self.get(name))
    }

    /// The same of layers with sliding windows.
    pub(super) fn sliding_rope(&self, name: &str) -> Option<&Value> {
        self.get("rope_parameters")?.get("sliding_attention")?.get(name)
    }

    pub(super) fn rope_f32(&self, name: &str) -> Result<Option<f32>> {
        self.rope(name)
            .map(|value| value.as_f64().map(|x| x as f32).ok_or_else(|| self.wrong(name, value, "a number")))
            .transpose()
    }

    /// The size of a head.
    pub(super) fn head_dim(&self) -> Result<u32> {
        let heads = self.required_u32("num_attention_heads")?;
        match self.u32("head_dim")? {
            Some(size) => Ok(size),
            None => (self.required_u32("hidden_size")?.checked_div(heads))
                .ok_or_else(|| Error::bad_file(&self.path, "num_attention_heads is 0")),
        }
    }

    fn wrong(&self, name: &str, value: &Value, expected: &str) -> Error {
        Error::bad_file(&self.path, format!("{name} is {value}; expected {expected}"))
    }
}
