//! Typed reading of the keys of a GGUF file, those of its architecture by their short names.

use std::fmt::Display;

use oarlock_gguf::{FromValue, Gguf};
use serde_json::Value;

use super::names::Architecture;

/// What was found, or what is wrong.
pub(super) type Found<T> = std::result::Result<T, String>;

/// A file, and its architecture.
pub(super) struct ModelKeys<'a> {
    pub(super) gguf: &'a Gguf<&'a [u8]>,
    pub(super) architecture: Architecture,
}

impl<'a> ModelKeys<'a> {
    /// # Errors
    /// A file that is not a whole model, and an architecture that is not known.
    pub(super) fn of(gguf: &'a Gguf<&'a [u8]>) -> Found<ModelKeys<'a>> {
        let text = |key: &str| gguf.get::<&str>(key).map_err(shown);
        if let Some(kind) = text("general.type")?.filter(|kind| *kind != "model") {
            return Err(format!(
                "the file is of the type {} (general.type), and not a model",
                kind.escape_debug()
            ));
        }
        if gguf.get::<u64>("split.count").map_err(shown)?.is_some_and(|n| n > 1) {
            return Err(
                "the file is one part of several (split.count); join them with llama-gguf-split --merge"
                    .to_owned(),
            );
        }
        let name = gguf.require::<&str>("general.architecture").map_err(shown)?;
        let architecture = Architecture::named(name).ok_or_else(|| {
            let known = Architecture::names().join(", ");
            format!("the architecture is {}; supported are {known}, all dense", name.escape_debug())
        })?;
        Ok(ModelKeys { gguf, architecture })
    }

    /// A key of the architecture, such as `block_count`.
    pub(super) fn get<T: FromValue<'a>>(&self, key: &str) -> Found<Option<T>> {
        self.gguf.get(&format!("{}.{key}", self.architecture.name)).map_err(shown)
    }

    /// A key that must be there.
    pub(super) fn require<T: FromValue<'a>>(&self, key: &str) -> Found<T> {
        self.gguf.require(&format!("{}.{key}", self.architecture.name)).map_err(shown)
    }

    /// A tensor of one dimension.
    pub(super) fn vector(&self, name: &str) -> Found<Option<Vec<f32>>> {
        let Ok(tensor) = self.gguf.tensor(name) else { return Ok(None) };
        if tensor.dims().len() > 1 || tensor.n_elems() > 1 << 16 {
            return Err(format!("the tensor {name} has the shape {:?}; expected a vector", tensor.dims()));
        }
        tensor.to_f32().map(Some).map_err(shown)
    }

    /// Whether there is a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_ok()
    }
}

/// An error as text.
pub(super) fn shown(error: impl Display) -> String {
    error.to_string()
}

/// A number of single precision with the digits that it was written by: 1e-5, and not 9.999999747378752e-6.
pub(super) fn decimal(x: f32) -> Value {
    format!("{x:e}").parse::<f64>().map_or(Value::Null, Value::from)
}
