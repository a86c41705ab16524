//! The model that an adapter was trained beside: written into its weights' file, and compared with the model beside which it
//! is opened.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use crate::gguf;
use crate::model::{HfConfig, ModelMark};

/// The entry in the metadata of the weights, which PEFT leaves alone.
const KEY: &str = "oarlock_base_model";

/// What the file of an adapter's weights says of its base.
pub(super) fn metadata(base: Option<&ModelMark>) -> BTreeMap<String, String> {
    let text = base.and_then(|base| serde_json::to_string(base).ok());
    text.map(|text| (KEY.to_owned(), text)).into_iter().collect()
}

/// Compares the base of an adapter with the model `beside` which it is opened, whose settings are `hf`: warnings,
/// if anything. `name` is `base_model_name_or_path`, `metadata` that of its weights.
///
/// # Errors
/// A model of another kind or size.
pub(super) fn compare(
    name: Option<&str>,
    metadata: Option<&HashMap<String, String>>,
    hf: &HfConfig,
    beside: &ModelMark,
) -> Result<Option<String>, String> {
    let written = metadata.and_then(|metadata| serde_json::from_str::<ModelMark>(metadata.get(KEY)?).ok());
    let is_same =
        |dir: &Path| hf.folder().is_some_and(|own| own.canonicalize().ok() == dir.canonicalize().ok());
    let named = || {
        let dir = name.map(Path::new).filter(|dir| gguf::has_file(dir, "config.json"))?;
        if is_same(dir) { Some(beside.clone()) } else { HfConfig::read(dir).ok().map(|base| base.mark()) }
    };
    let called = name.filter(|name| !name.is_empty()).map_or(String::new(), |name| format!(" {name}"));
    let here = hf.folder().map_or("this model".to_owned(), |dir| dir.display().to_string());
    let Some(base) = written.or_else(named) else {
        // Nothing is known but names, and folders may be moved.
        let Some(word) = name.and_then(last_word) else { return Ok(None) };
        let is_named = hf.folder().is_none_or(|dir| {
            let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
            whole.to_string_lossy().to_lowercase().contains(&word.to_lowercase())
        });
        return Ok((!is_named).then(|| {
            format!(
                "warning: the adapter was trained beside{called} by its adapter_config.json, and is used beside {here}; beside \
                 another model it computes something else"
            )
        }));
    };
    if !base.is_of_kind(beside) {
        return Err(format!(
            "is an adapter of another kind of model:{called} ({}); {here} is another one ({})",
            base.describe(),
            beside.describe()
        ));
    }
    Ok(base.has_other_layers(beside).then(|| {
        format!(
            "warning: the adapter was trained beside{called}, whose weights are not those of {here}, beside which it is used; \
             what it computes there is not what was trained"
        )
    }))
}

/// The last word of a path or of a hub's name.
fn last_word(name: &str) -> Option<&str> {
    name.trim_end_matches('/')
        .rsplit('/')
        .next()
        .filter(|word| !word.is_empty() && *word != "." && *word != "..")
}
