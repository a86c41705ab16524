//! A Hugging Face folder as one GGUF file, the format of llama.cpp and Ollama.
//!
//! [`architecture`] says what llama.cpp calls the model, its settings and its tensors,
//! [`vocabulary`] what it reads of the tokenizer. What GGUF cannot say is refused with the reason.

mod architecture;
mod keys;
mod rope;
mod settings;
mod tensors;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use oarlock_engine::{Error, Result};
pub use oarlock_gguf::Mix;
use oarlock_gguf::{Gguf, Metadata, ModelFacts, TensorPlan, Writer, mix_types, sort_as_llama_quantize};

use self::settings::Settings;
use self::tensors::{ROWS, Tensors};

/// Says in a file that it was written here, so that it may be replaced.
const QUANTIZED_BY: &str = "general.quantized_by";
const OURS: &str = "oarlock";

/// What [`write_gguf`] has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenGguf {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub n_bytes: u64,
    /// How many tensors have each type, by the name of the type.
    pub types: Vec<(String, usize)>,
    /// What llama.cpp computes otherwise than this model.
    pub notes: Vec<String>,
}

/// Writes the model in the folder `dir` to the file `out`, its tensors in the types of `mix`.
///
/// # Errors
/// What is wrong with the folder; a model or a tokenizer that GGUF cannot say; [`Error::Usage`] where a file is in the way that
/// was not written here, unless `overwrite` says that it may be replaced; a file that cannot be written.
pub fn write_gguf(dir: &Path, out: &Path, mix: Mix, overwrite: bool) -> Result<WrittenGguf> {
    if !overwrite && out.exists() && !is_ours(out) {
        return Err(Error::Usage(format!(
            "{} was not written by an export; move it, or write `overwrite_output_dir: true` to replace it",
            out.display()
        )));
    }
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
    vocabulary::write(dir, &settings, n_rows, &mut metadata)?;
    metadata.set("general.file_type", mix.file_type()).map_err(unwritable)?;
    metadata.set("general.quantization_version", 2_u32).map_err(unwritable)?;
    metadata.set(QUANTIZED_BY, OURS).map_err(unwritable)?;

    let mut plans = tensors.plans();
    let count = |name: &str| settings.u32(name).map(Option::unwrap_or_default);
    let n_heads = count("num_attention_heads")?;
    let facts = ModelFacts {
        architecture: architecture.name.to_owned(),
        n_layers: count("num_hidden_layers")?,
        n_heads,
        n_kv_heads: settings.u32("num_key_value_heads")?.unwrap_or(n_heads),
        n_experts: 0,
        has_importance: false,
    };
    sort_as_llama_quantize(&mut plans);
    mix_types(mix, &facts, &mut plans);

    let io = |error: std::io::Error| Error::io("write", out)(error);
    let mut file = oarlock_files::Replacement::begin(out).map_err(io)?;
    let mut writer =
        Writer::begin(BufWriter::new(&mut file), &metadata, plans.clone()).map_err(unwritable)?;
    let mut values = Vec::new();
    for plan in &plans {
        let (row, n_rows) = shape(plan);
        for start in (0..n_rows).step_by(ROWS) {
            let rows = start..(start + ROWS).min(n_rows);
            values.resize(rows.len() * row, 0.0);
            tensors.read(&plan.name, rows, &mut values)?;
            writer.write_rows(&values, None).map_err(|error| Error::bad_file(out, error.to_string()))?;
        }
    }
    let sink = writer.finish().map_err(|error| Error::bad_file(out, error.to_string()))?;
    sink.into_inner().map_err(|error| io(error.into_error()))?;
    file.publish().map_err(io)?;
    let (n_bytes, types) = check(out, &plans, &tensors)?;
    Ok(WrittenGguf {
        path: out.to_owned(),
        n_bytes,
        types,
        notes: architecture::notes(&architecture, &settings)?,
    })
}

/// The elements of a row, and the rows.
fn shape(plan: &TensorPlan) -> (usize, usize) {
    let row = plan.row_elems() as usize;
    (row, plan.dims.iter().skip(1).product::<u64>() as usize)
}

/// Whether a file says that it was written here.
fn is_ours(path: &Path) -> bool {
    let map = oarlock_comm::MappedFile::open(path).ok();
    let gguf = map.as_ref().and_then(|map| Gguf::new(&map[..]).ok());
    gguf.is_some_and(|gguf| gguf.require::<&str>(QUANTIZED_BY).is_ok_and(|by| by == OURS))
}

/// Reads the file back: every tensor is there, and a row of each is that of the weights. Gives its size and its types.
fn check(out: &Path, plans: &[TensorPlan], tensors: &Tensors) -> Result<(u64, Vec<(String, usize)>)> {
    let map = oarlock_comm::MappedFile::open(out).map_err(Error::io("read", out))?;
    let broken = |what: String| Error::bad_file(out, format!("the export is broken, do not use it: {what}"));
    let gguf = Gguf::new(&map[..]).map_err(|error| broken(error.to_string()))?;
    let mut types: Vec<(String, usize)> = Vec::new();
    let (mut values, mut expected, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for plan in plans {
        let tensor = gguf.tensor(&plan.name).map_err(|error| broken(error.to_string()))?;
        let name = plan.tensor_type.to_string();
        match types.iter_mut().find(|(known, _)| *known == name) {
            Some((_, n)) => *n += 1,
            None => types.push((name, 1)),
        }
        let (row, n_rows) = shape(plan);
        // One row says whether a tensor is the right one; its blocks were made by the code that is compared with.
        let at = n_rows / 2;
        values.resize(row, 0.0);
        found.resize(row, 0.0);
        expected.resize(row, 0.0);
        tensors.read(&plan.name, at..at + 1, &mut values)?;
        oarlock_gguf::quantize(plan.tensor_type, &values, row, None)
            .and_then(|blocks| oarlock_gguf::dequantize(plan.tensor_type, &blocks, &mut expected))
            .and_then(|()| tensor.dequantize_rows(at as u64, 1, &mut found))
            .map_err(|error| broken(error.to_string()))?;
        if expected.iter().zip(&found).any(|(a, b): (&f32, &f32)| a.to_bits() != b.to_bits()) {
            return Err(broken(format!("row {at} of {} is not that of the weights", plan.name)));
        }
    }
    map.check().map_err(Error::io("read", out))?;
    types.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    Ok((map.len() as u64, types))
}
