//! A Hugging Face folder as one GGUF file, the format of llama.cpp and Ollama.
//!
//! [`architecture`] says what llama.cpp calls the model, its settings and its tensors,
//! [`vocabulary`] what it reads of the tokenizer. What GGUF cannot say is refused with the reason.

mod adapter;
mod architecture;
mod file;
mod importance;
mod keys;
mod rope;
mod settings;
mod tensors;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::path::Path;

use oarlock_engine::{Error, Result};
pub use oarlock_gguf::{ImportanceMatrix, Mix};
use oarlock_gguf::{Metadata, ModelFacts, TensorPlan, mix_types, sort_as_llama_quantize};

pub use self::adapter::write_gguf_adapter;
pub use self::file::WrittenGguf;
pub use self::importance::{Calibration, collect_importance};
use self::settings::Settings;
use self::tensors::Tensors;

/// Writes the model in the folder `dir` to the file `out`, its tensors in the types of `mix`. `importance` says how much the
/// columns of its weights matter.
///
/// # Errors
/// What is wrong with the folder; a model or a tokenizer that GGUF cannot say; an importance matrix of another model;
/// [`Error::Usage`] where a file is in the way that was not written here, unless `overwrite` says that it may be replaced; a file
/// that cannot be written.
pub fn write_gguf(
    dir: &Path,
    out: &Path,
    mix: Mix,
    importance: Option<&ImportanceMatrix>,
    overwrite: bool,
) -> Result<WrittenGguf> {
    file::may_replace(out, overwrite)?;
    let settings = Settings::read(dir)?;
    let architecture = architecture::of(&settings)?;
    let mut metadata = Metadata::new();
    let tensors = Tensors::open(dir, &architecture, &settings)?;
    let unwritable = |error: oarlock_gguf::Error| Error::bad_file(dir, error.to_string());
    let name = dir.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy());
    metadata.set("general.architecture", architecture.name).map_err(unwritable)?;
    metadata.set("general.type", "model").map_err(unwritable)?;
    metadata.set("general.name", name.as_ref()).map_err(unwritable)?;
    architecture::write_settings(&architecture, &settings, &mut metadata)?;
    let n_rows = tensors.n_tokens()?;
    let mut notes = architecture::notes(&architecture, &settings)?;
    notes.extend(vocabulary::write(dir, &settings, n_rows, &mut metadata)?);
    metadata.set("general.file_type", mix.file_type()).map_err(unwritable)?;
    metadata.set("general.quantization_version", 2_u32).map_err(unwritable)?;
    if let Some(matrix) = importance {
        // As llama-quantize has them.
        let dataset = matrix.datasets.first().map_or("", String::as_str);
        metadata.set("quantize.imatrix.dataset", dataset).map_err(unwritable)?;
        let n_entries = u32::try_from(matrix.entries.len()).unwrap_or(u32::MAX);
        metadata.set("quantize.imatrix.entries_count", n_entries).map_err(unwritable)?;
        metadata.set("quantize.imatrix.chunks_count", matrix.n_chunks).map_err(unwritable)?;
    }

    let mut plans = tensors.plans();
    let count = |name: &str| settings.u32(name).map(Option::unwrap_or_default);
    let n_heads = count("num_attention_heads")?;
    let facts = ModelFacts {
        architecture: architecture.name.to_owned(),
        n_layers: count("num_hidden_layers")?,
        n_heads,
        n_kv_heads: settings.u32("num_key_value_heads")?.unwrap_or(n_heads),
        n_experts: 0,
        has_importance: importance.is_some(),
    };
    sort_as_llama_quantize(&mut plans);
    mix_types(mix, &facts, &mut plans);
    let is_known = |plan: &TensorPlan| importance.is_some_and(|m| m.entries.contains_key(&plan.name));
    if let Some(plan) = plans.iter().find(|plan| mix.needs_importance(plan) && !is_known(plan)) {
        return Err(Error::Usage(format!(
            "{} of {} needs an importance matrix; write `imatrix` or `export_quantization_dataset`",
            mix.name(),
            plan.name
        )));
    }
    if let Some(matrix) = importance
        && !plans.iter().any(is_known)
    {
        let name = matrix.entries.keys().next().map_or("", String::as_str);
        return Err(Error::Usage(format!(
            "the importance matrix is one of another model: it knows {}, and none of the tensors of this one",
            name.escape_debug()
        )));
    }
    let file::Written { n_bytes, types } = file::write(out, metadata, &plans, &tensors, importance)?;
    Ok(WrittenGguf { path: out.to_owned(), n_bytes, types, notes })
}
