//! How the files of a folder hold a model: under which names, and in which form.

use std::collections::BTreeMap;
use std::path::Path;

use super::located::Located;
use super::mapped::MappedFiles;
use super::packed::StoredQuantization;
use crate::Result;

/// What says how a folder holds a model, such as its `config.json`.
pub trait StoredForm {
    /// What errors call it.
    fn title(&self) -> &str;

    /// What the files call a parameter.
    fn stored(&self, name: &str) -> String;

    /// The files themselves, where they are not the safetensors files of a folder.
    ///
    /// # Errors
    /// Files that cannot be read.
    fn files(&self, _dir: &Path) -> Result<Option<MappedFiles>> {
        Ok(None)
    }

    /// How the files hold quantized weights, where they do.
    fn quantization(&self) -> Option<StoredQuantization> {
        None
    }

    /// Lines for what is said of quantized weights that those `found` in the files of `dir` are not.
    fn contradictions(&self, _dir: &Path, _found: &BTreeMap<String, Located>) -> Vec<String> {
        Vec::new()
    }

    /// What to say where the weights of these names, and no others, are missing, if there is more to say than that.
    fn explain_missing(&self, _names: &[String]) -> Option<String> {
        None
    }
}
