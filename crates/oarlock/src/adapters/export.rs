//! A base with its adapters as one model in a Hugging Face folder.

use std::path::{Path, PathBuf};

use oarlock_tensor::cpu::quantized::Format;
use oarlock_tensor::{DType, Device};
use serde_json::Value;

use super::compare::{Compared, compared, logits, prompts};
use super::inference::{beside, load_for_inference, merging};
use super::modelfile::modelfile;
use crate::data::Tokenizer;
use crate::error::{Error, Result};
use crate::model::hf::{ModelFiles, QuantizedFiles, generation_stops};
use crate::model::{Decoder, HfConfig, SafetensorsSource, SaveOptions};
use crate::nn::parameters;
use crate::shard::{ParamSlice, WeightSource};

/// What [`export`] writes.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions<'a> {
    /// The folder of the base.
    pub model: &'a Path,
    /// The adapters that are merged into it, in order; there may be none.
    pub adapters: &'a [PathBuf],
    /// What is done with the base in few bits.
    pub quantized: Option<Quantized>,
    /// The folder to write to.
    pub out: &'a Path,
    /// The most bytes of weights in one file.
    pub max_shard_bytes: u64,
    /// The dtype of the weights; `None` stands for that of the base.
    pub dtype: Option<DType>,
}

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
    /// How far the written model is from the base with its adapters, both computed in f32.
    pub compared: Compared,
}

/// Merges adapters into a base and writes the model with its settings, tokenizer and a `Modelfile` for Ollama. Weights are
/// added up in f32 and rounded once. Then both are asked the same prompts.
///
/// # Errors
/// What is wrong with the folders; `out` is then as it was.
pub fn export(options: &ExportOptions<'_>, device: &Device) -> Result<Exported> {
    let ExportOptions { model: dir, adapters, quantized, out, max_shard_bytes, dtype } = *options;
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
    let hf = HfConfig::read(dir)?;
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
    let prompts = prompts(&tokenizer, n_positions)?;
    // A base that cannot be used is found before anything is written.
    let before = logits(&beside(dir, adapters, quantized, device, DType::F32, n_positions)?, dir, &prompts)?;
    let mut source = merging(dir, &hf, &mut decoder, adapters, quantized, device)?;
    let mut files = ModelFiles::of_model(&hf, &decoder, &save)?;
    if side != dir {
        files.take_over(side, &[]);
    }
    for (name, text) in beside_weights(side, &hf, &tokenizer)? {
        files.add_text(name, text);
    }
    files.take_over_value_head(adapters.iter().rev().map(PathBuf::as_path).chain([dir]));
    let names: Vec<String> = files.names().map(str::to_owned).collect();
    let params = parameters(&decoder);
    let n_elems = params.iter().map(|named| named.param.shape().n_elems()).sum();
    files.save(out, &mut |name, elements, values| {
        let Some(named) = params.iter().find(|named| named.name == name) else { return Ok(()) };
        source.read(&ParamSlice::of(named, elements), values)
    })?;
    drop(source);

    let after = logits(&load_for_inference(out, &[], device, DType::F32, n_positions)?, out, &prompts)?;
    let compared = compared(&before, &after, hf.decoder().vocab_size)?;
    Ok(Exported { n_elems, dtype, files: names, compared })
}

/// Where the tokenizer of a model with adapters lies, and the chat template that it was trained with: in the folder of the
/// last adapter that has one, else in that of the model.
pub fn tokenizer_folder<'d>(dir: &'d Path, adapters: &'d [PathBuf]) -> &'d Path {
    let has_one = |dir: &&PathBuf| dir.join("tokenizer.json").is_file();
    adapters.iter().rev().find(has_one).map_or(dir, PathBuf::as_path)
}

/// Writes a base in few bits, and compares it with the base.
fn export_packed(
    options: &ExportOptions<'_>,
    hf: &HfConfig,
    (tokenizer, dtype): (&Tokenizer, DType),
    format: Format,
    device: &Device,
) -> Result<Exported> {
    let ExportOptions { model: dir, adapters, out, max_shard_bytes, .. } = *options;
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
    for (name, text) in beside_weights(dir, hf, tokenizer)? {
        files.add_text(name, text);
    }
    let names: Vec<String> = files.names().map(str::to_owned).collect();
    let (plain, mut quantized) =
        (Decoder::new(hf.decoder().clone(), 1)?, Decoder::new(hf.decoder().clone(), 1)?);
    let n_elems = parameters(&plain).iter().map(|named| named.param.shape().n_elems()).sum();
    let full = SafetensorsSource::open(dir, hf, &plain)?;
    let mut source = quantized.quantize(format, DType::F32)?.source(full, device);
    files.save(out, &mut source, dtype)?;
    drop(source);

    let n_positions = hf.decoder().positions(256);
    let prompts = prompts(tokenizer, n_positions)?;
    let of =
        |dir: &Path| logits(&load_for_inference(dir, &[], device, DType::F32, n_positions)?, dir, &prompts);
    let compared = compared(&of(dir)?, &of(out)?, hf.decoder().vocab_size)?;
    Ok(Exported { n_elems, dtype, files: names, compared })
}

/// Texts beside the weights: a `Modelfile`, and the settings of the tokenizer.
fn beside_weights(dir: &Path, hf: &HfConfig, tokenizer: &Tokenizer) -> Result<Vec<(&'static str, String)>> {
    let mut stops = hf.special().eos.clone();
    stops.extend(generation_stops(dir)?);
    stops.extend(tokenizer.special().eos);
    stops.sort_unstable();
    stops.dedup();
    let mut texts = vec![("Modelfile", modelfile(dir, tokenizer, &stops))];
    texts.extend(padding_left(dir).map(|text| ("tokenizer_config.json", text)));
    Ok(texts)
}

/// The dtype that `config.json` gives the weights.
fn dtype_of(dir: &Path) -> Result<DType> {
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let config: Value = serde_json::from_str(&text).map_err(|e| Error::bad_file(&path, e.to_string()))?;
    let named = ["dtype", "torch_dtype"].iter().find_map(|key| config.get(key)?.as_str());
    Ok(match named.map(|name| name.trim_start_matches("torch.")) {
        Some("bfloat16") => DType::BF16,
        Some("float16") => DType::F16,
        _ => DType::F32,
    })
}

/// `tokenizer_config.json` of a folder with padding on the left, where answers are generated.
fn padding_left(dir: &Path) -> Option<String> {
    let text = std::fs::read_to_string(dir.join("tokenizer_config.json")).ok()?;
    let Ok(Value::Object(mut config)) = serde_json::from_str(&text) else { return None };
    config.insert("padding_side".to_owned(), Value::from("left"));
    Some(format!("{:#}\n", Value::Object(config)))
}
