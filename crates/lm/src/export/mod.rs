//! A base with its adapters as one model in a Hugging Face folder, which is read back and compared with what it was to be.
//!
//! The tokenizer's files are copied. In those that change, every other byte stays.

mod asked;
mod gguf;
mod go;
mod logits;
mod modelfile;
mod ollama;
mod ollama_check;
#[cfg(test)]
mod tests;
mod texts;
mod written;

use std::path::{Path, PathBuf};

use oarlock_config::config::{ChatArgs, RopeArgs};
use oarlock_config::json;
use oarlock_engine::checkpoint::weights::SafetensorsSource;
use oarlock_engine::nn::parameters;
use oarlock_engine::shard::{ParamSlice, WeightSource};
use oarlock_engine::{Error, Result};
use oarlock_tensor::cpu::quantized::Format;
use oarlock_tensor::{DType, Device};
use serde_json::Value;

pub use asked::{Agreement, Questions};
pub use gguf::{
    Calibration, ImportanceMatrix, Mix, WrittenGguf, collect_importance, write_gguf, write_gguf_adapter,
};
pub use logits::{Compared, PROMPTS};
use logits::{compared, logits, prompts};
use texts::beside_weights;
pub use written::N_LINES;
use written::{check_template, check_tokens, check_weights};

use crate::adapters::{
    beside, load_for_inference, load_for_inference_as, merging, settings_beside, tokenizer_folder,
};
use crate::data::Tokenizer;
use crate::model::hf::{QuantizedFiles, take_over_side_files};
use crate::model::{Decoder, HfConfig, SaveOptions, layers_in_blocks, take_over_value_head};

/// What [`export`] writes.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions<'a> {
    /// The folder of the base.
    pub model: &'a Path,
    /// The adapters that are merged into it, in order; there may be none.
    pub adapters: &'a [PathBuf],
    /// What is done with the base in few bits.
    pub quantized: Option<Quantized>,
    /// Whether adapters may be merged into what the blocks of a quantized GGUF file stand for.
    pub dequantizes: bool,
    /// The folder to write to.
    pub out: &'a Path,
    /// The most bytes of weights in one file.
    pub max_shard_bytes: u64,
    /// The dtype of the weights; `None` stands for that of the base.
    pub dtype: Option<DType>,
    /// Whether files may be replaced that no earlier export wrote.
    pub overwrite: bool,
    /// The template with which the model is to be talked to, where it is not the one of the folders.
    pub chat: Option<&'a ChatArgs>,
    /// How positions are scaled ([`HfConfig::with_rope_scaling`]).
    pub rope_scaling: Option<RopeArgs>,
}

/// What the record of a folder calls the writer of an export.
const EXPORT: &str = "export";

/// What an export does with a base in few bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantized {
    /// Adapters are merged into what its weights in this format stand for: what an adapter of QLoRA was trained against.
    Dequantized(Format),
    /// Its weights are written in this format, in the files of bitsandbytes. There are no adapters.
    Packed(Format),
}

/// What [`export`] has written.
#[derive(Clone, Debug, PartialEq)]
pub struct Exported {
    /// Elements of all weights.
    pub n_elems: usize,
    /// Their dtype.
    pub dtype: DType,
    /// The names of the files.
    pub files: Vec<String>,
    /// Warnings about how the base and its adapters were read.
    pub notes: Vec<String>,
    /// How far the written model is from the base with its adapters, both computed in f32.
    pub compared: Compared,
}

/// Merges adapters into a base and writes the model with its settings, tokenizer and a `Modelfile` for Ollama. Weights are
/// added up in f32 and rounded once. Then the folder is read back: every weight, the tokens of texts and the chat template are
/// compared with what was to be written, and both models are asked the same prompts.
///
/// # Errors
/// What is wrong with the folders, and [`Error::Occupied`] where `out` holds something that may not be replaced; `out` is then as
/// it was. What was written and is not what it was to be: that folder must not be used.
pub fn export(options: &ExportOptions<'_>, device: &Device) -> Result<Exported> {
    let ExportOptions { model: dir, adapters, out, max_shard_bytes, overwrite, chat, .. } = *options;
    let ExportOptions { quantized, dtype, rope_scaling, .. } = *options;
    let same =
        |path: &Path| path.canonicalize().ok().is_some_and(|path| out.canonicalize().ok() == Some(path));
    if let Some(path) =
        std::iter::once(dir).chain(adapters.iter().map(PathBuf::as_path)).find(|path| same(path))
    {
        return Err(Error::Usage(format!(
            "export_dir is {}, whose weights are read; name another folder",
            path.display()
        )));
    }
    let hf = settings_beside(dir, adapters)?;
    let is_in_blocks = is_quantized_gguf(dir)?;
    if options.dequantizes && !is_in_blocks {
        return Err(Error::Usage(format!(
            "`export_dequantized: true`: {} is no GGUF file with quantized weights; remove it",
            dir.display()
        )));
    }
    if !adapters.is_empty() && !options.dequantizes && is_in_blocks {
        return Err(Error::Usage(format!(
            "{} is a GGUF file with quantized weights, and nothing can be merged into blocks; write `gguf_adapter: f16` for \
             the adapter as a GGUF file beside it, or name a base that is not quantized (`export_dequantized: true` merges \
             into what the blocks stand for)",
            dir.display()
        )));
    }
    let hf = match rope_scaling {
        Some(scaling) => hf.with_rope_scaling(scaling)?,
        None => hf,
    };
    let dtype = dtype.unwrap_or(dtype_of(dir)?);
    let side = tokenizer_folder(dir, adapters);
    let tokenizer = Tokenizer::open(side)?;
    let quantized = match quantized {
        Some(Quantized::Packed(format)) => {
            return export_packed(options, &hf, (&tokenizer, dtype), format, device);
        }
        Some(Quantized::Dequantized(format)) => Some(format),
        None => None,
    };
    let save = SaveOptions { dtype, max_shard_bytes, side_files_from: Some(dir) };
    let n_positions = hf.decoder().positions(256);
    let mut decoder = Decoder::new(hf.decoder().clone(), n_positions)?;
    let prompts = prompts(&tokenizer, hf.decoder().vocab_size, n_positions)?;
    // A base that cannot be used is found before anything is written.
    let before = beside(hf.clone(), dir, adapters, quantized, device, DType::F32, n_positions)?;
    let before = logits(&before, dir, &prompts)?;
    let mut source = merging(dir, &hf, &mut decoder, adapters, quantized, device)?;
    let notes = [hf.notes(), &source.notes()].concat();
    let mut files = hf.files_of(&decoder, &save)?;
    if side != dir {
        take_over_side_files(&mut files, side, &[])?;
    }
    let texts = beside_weights(side, &hf, &tokenizer, chat)?;
    texts.left_out.into_iter().for_each(|name| files.leave_out(name));
    texts.files.into_iter().for_each(|(name, text)| files.add_text(name, text));
    let notes = [notes, texts.warnings].concat();
    let heads = adapters.iter().rev().map(PathBuf::as_path).chain([dir]);
    take_over_value_head(&mut files, heads, hf.decoder().hidden_size)?;
    let files = files.written_by(EXPORT, overwrite);
    let names: Vec<String> = files.names().map(str::to_owned).collect();
    let params = parameters(&decoder);
    let n_elems = params.iter().map(|named| named.param.shape().n_elems()).sum();
    files.save(out, &mut |name, elements, values| {
        let Some(named) = params.iter().find(|named| named.name == name) else { return Ok(()) };
        source.read(&ParamSlice::of(named, elements), values)
    })?;
    check_weights(out, dtype, &mut source)?;
    drop(source);
    check_tokens(out, &tokenizer)?;
    check_template(out, texts.template.as_ref())?;
    let after = logits(&load_for_inference(out, &[], device, DType::F32, n_positions)?, out, &prompts)?;
    let compared = compared(&before, &after, hf.decoder().vocab_size)?.within(bound(dtype), out)?;
    Ok(Exported { n_elems, dtype, files: names, notes, compared })
}

/// Whether a base is a GGUF file that holds weights of linear layers in blocks.
fn is_quantized_gguf(dir: &Path) -> Result<bool> {
    Ok(crate::gguf::is_gguf(dir) && !layers_in_blocks(dir, &HfConfig::read(dir)?)?.is_empty())
}

/// Writes a base in few bits, and compares it with the base.
fn export_packed(
    options: &ExportOptions<'_>,
    hf: &HfConfig,
    (tokenizer, dtype): (&Tokenizer, DType),
    format: Format,
    device: &Device,
) -> Result<Exported> {
    let ExportOptions { model: dir, adapters, out, max_shard_bytes, overwrite, chat, .. } = *options;
    if let Some(kind) = hf.quantization() {
        return Err(Error::Usage(format!(
            "the weights of {} are quantized already ({})",
            dir.display(),
            kind.name()
        )));
    }
    if !adapters.is_empty() {
        return Err(Error::Usage(
            "adapters are merged into a model before its weights are quantized".to_owned(),
        ));
    }
    let save = SaveOptions { dtype, max_shard_bytes, side_files_from: Some(dir) };
    let mut files = QuantizedFiles::new(hf, format, &save)?;
    let texts = beside_weights(dir, hf, tokenizer, chat)?;
    texts.left_out.into_iter().for_each(|name| files.leave_out(name));
    texts.files.into_iter().for_each(|(name, text)| files.add_text(name, text));
    let files = files.written_by(EXPORT, overwrite);
    let names: Vec<String> = files.names().map(str::to_owned).collect();
    let (plain, mut quantized) =
        (Decoder::new(hf.decoder().clone(), 1)?, Decoder::new(hf.decoder().clone(), 1)?);
    let n_elems = parameters(&plain).iter().map(|named| named.param.shape().n_elems()).sum();
    let full = SafetensorsSource::open(dir, hf, &plain)?;
    let notes = [hf.notes(), &full.notes(), &texts.warnings].concat();
    let mut source = quantized.quantize(format, DType::F32)?.source(full, device);
    files.save(out, &mut source, dtype)?;
    drop(source);
    check_tokens(out, tokenizer)?;
    check_template(out, texts.template.as_ref())?;

    let n_positions = hf.decoder().positions(256);
    let prompts = prompts(tokenizer, hf.decoder().vocab_size, n_positions)?;
    let before = load_for_inference_as(hf.clone(), dir, &[], device, DType::F32, n_positions)?;
    let before = logits(&before, dir, &prompts)?;
    let after = logits(&load_for_inference(out, &[], device, DType::F32, n_positions)?, out, &prompts)?;
    let compared = compared(&before, &after, hf.decoder().vocab_size)?;
    Ok(Exported { n_elems, dtype, files: names, notes, compared })
}

/// How far the logits may be from those of the model in memory, as a share of their size: what rounding its weights to this dtype
/// does, with room.
fn bound(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 1e-3,
        _ => 0.2,
    }
}

/// The dtype that `config.json` gives the weights.
fn dtype_of(dir: &Path) -> Result<DType> {
    let path = dir.join("config.json");
    let text =
        crate::gguf::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES).map_err(Error::io("read", &path))?;
    let config: Value = json::from_str(&text).map_err(|e| Error::bad_file(&path, e.to_string()))?;
    let named = ["dtype", "torch_dtype"].iter().find_map(|key| config.get(key)?.as_str());
    Ok(match named.map(|name| name.trim_start_matches("torch.")) {
        Some("bfloat16") => DType::BF16,
        Some("float16") => DType::F16,
        _ => DType::F32,
    })
}
