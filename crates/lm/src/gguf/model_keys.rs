//! Typed reading of the keys of a GGUF file, those of its architecture by their short names.

use oarlock_gguf::{FromValue, Gguf};
use serde_json::Value;

use super::names::Architecture;
use super::parts::{Found, Model, shown};

/// A model, and its architecture.
pub(super) struct ModelKeys<'a> {
    pub(super) model: &'a Model<'a>,
    gguf: &'a Gguf<&'a [u8]>,
    pub(super) architecture: Architecture,
}

impl<'a> ModelKeys<'a> {
    /// # Errors
    /// A file that is not a whole model, and an architecture that is not known.
    pub(super) fn of(model: &'a Model<'a>) -> Found<ModelKeys<'a>> {
        let gguf = model.keys();
        let text = |key: &str| gguf.get::<&str>(key).map_err(shown);
        if let Some(kind) = text("general.type")?.filter(|kind| *kind != "model") {
            return Err(format!(
                "the file is of the type {} (general.type), and not a model",
                kind.escape_debug()
            ));
        }
        let name = gguf.require::<&str>("general.architecture").map_err(shown)?;
        let architecture = Architecture::named(name).ok_or_else(|| {
            let known = Architecture::names().join(", ");
            format!("the architecture is {}; supported are {known}, all dense", name.escape_debug())
        })?;
        Ok(ModelKeys { model, gguf, architecture })
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
        let Some(tensor) = self.model.tensor(name) else { return Ok(None) };
        if tensor.dims().len() > 1 || tensor.n_elems() > 1 << 16 {
            return Err(format!("the tensor {name} has the shape {:?}; expected a vector", tensor.dims()));
        }
        tensor.to_f32().map(Some).map_err(shown)
    }

    /// Whether there is a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.model.tensor(name).is_some()
    }
}

/// A number of single precision with the digits that it was written by: 1e-5, and not 9.999999747378752e-6.
pub(super) fn decimal(x: f32) -> Value {
    format!("{x:e}").parse::<f64>().map_or(Value::Null, Value::from)
}
