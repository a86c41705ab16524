//! A base with its adapters as one model: in memory for inference, and as a Hugging Face folder.

use std::path::{Path, PathBuf};

use oarlock_tensor::{DType, Device};
use serde_json::Value;

use super::adapt::{Adaptation, adapt};
use super::compare::{Compared, compared, logits, prompts};
use super::folder::Adapter;
use super::modelfile::modelfile;
use super::source::AdaptedSource;
use crate::data::Tokenizer;
use crate::error::{Error, Result};
use crate::model::hf::{ModelFiles, load_from};
use crate::model::{Decoder, HfConfig, LoadedModel, SafetensorsSource, SaveOptions};
use crate::nn::parameters;
use crate::shard::WeightSource;

/// What [`export`] writes.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions<'a> {
    /// The folder of the base.
    pub model: &'a Path,
    /// The adapters that are merged into it, in order; there may be none.
    pub adapters: &'a [PathBuf],
    /// The folder to write to.
    pub out: &'a Path,
    /// The most bytes of weights in one file.
    pub max_shard_bytes: u64,
    /// The dtype of the weights; `None` stands for that of the base.
    pub dtype: Option<DType>,
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
    let ExportOptions { model: dir, adapters, out, max_shard_bytes, dtype } = *options;
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
    let tokenizer = Tokenizer::open(dir)?;
    let save = SaveOptions { dtype, max_shard_bytes, side_files_from: Some(dir) };
    let n_positions = hf.decoder().max_positions.min(256);
    let mut decoder = Decoder::new(hf.decoder().clone(), n_positions)?;
    let mut source = merging(dir, &hf, &mut decoder, adapters, device)?;
    let mut files = ModelFiles::of_model(&hf, &decoder, &save)?;
    let mut stops = hf.special().eos.clone();
    stops.extend(tokenizer.special().eos);
    stops.sort_unstable();
    stops.dedup();
    files.add_text("Modelfile", modelfile(dir, &tokenizer, &stops));
    if let Some(text) = padding_left(dir) {
        files.add_text("tokenizer_config.json", text);
    }
    files.take_over_value_head(adapters.iter().rev().map(PathBuf::as_path).chain([dir]));
    let names: Vec<String> = files.names().map(str::to_owned).collect();
    let params = parameters(&decoder);
    let n_elems = params.iter().map(|named| named.param.shape().n_elems()).sum();
    files.save(out, &mut |name, elements, values| {
        let Some(named) = params.iter().find(|named| named.name == name) else { return Ok(()) };
        source.read(name, named.param.shape(), named.param.init(), elements, values)
    })?;
    drop(source);

    let prompts = prompts(&tokenizer, n_positions)?;
    let before = logits(&with_adapters(dir, adapters, device, n_positions)?, &prompts)?;
    let after = logits(&load_for_inference(out, &[], device, DType::F32, n_positions)?, &prompts)?;
    let compared = compared(&before, &after, hf.decoder().vocab_size);
    Ok(Exported { n_elems, dtype, files: names, compared })
}

/// Loads a Hugging Face folder for inference with adapters merged into it, in order.
///
/// # Errors
/// What is wrong with one of the folders, or no memory.
pub fn load_for_inference(
    dir: &Path,
    adapters: &[PathBuf],
    device: &Device,
    dtype: DType,
    n_positions: usize,
) -> Result<LoadedModel> {
    let config = HfConfig::read(dir)?;
    let n_positions = config.decoder().max_positions.min(n_positions);
    let mut decoder = Decoder::new(config.decoder().clone(), n_positions)?;
    let mut source = merging(dir, &config, &mut decoder, adapters, device)?;
    load_from(config, decoder, &mut source, device, dtype, n_positions)
}

/// The same in f32 with the last adapter beside the model, as it was trained.
fn with_adapters(
    dir: &Path,
    adapters: &[PathBuf],
    device: &Device,
    n_positions: usize,
) -> Result<LoadedModel> {
    let config = HfConfig::read(dir)?;
    let mut decoder = Decoder::new(config.decoder().clone(), n_positions)?;
    let Some((last, merged)) = adapters.split_last() else {
        return load_for_inference(dir, adapters, device, DType::F32, n_positions);
    };
    let source = merging(dir, &config, &mut decoder, merged, device)?;
    let last = Adapter::open(last, &config, &mut decoder)?;
    adapt(&mut decoder, &Adaptation::of(&last))?;
    let mut source = source.continuing(Some(last));
    load_from(config, decoder, &mut source, device, DType::F32, n_positions)
}

/// The weights of a folder with adapters merged into them.
fn merging(
    dir: &Path,
    hf: &HfConfig,
    decoder: &mut Decoder,
    adapters: &[PathBuf],
    device: &Device,
) -> Result<AdaptedSource> {
    let base = SafetensorsSource::open(dir, hf, decoder)?;
    let merged = adapters.iter().map(|dir| Adapter::open(dir, hf, decoder)).collect::<Result<_>>()?;
    Ok(AdaptedSource::new(Box::new(base), decoder, 0, device).merging(merged))
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
