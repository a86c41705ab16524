//! A base with its adapters in memory for inference: merged into it, or the last one beside it.

use std::path::{Path, PathBuf};

use oarlock_engine::checkpoint::weights::{QuantizedLayers, SafetensorsSource, StoredQuantization};
use oarlock_engine::nn::Layer;
use oarlock_engine::shard::WeightSource;
use oarlock_engine::{Error, Result};
use oarlock_tensor::cpu::quantized::Format;
use oarlock_tensor::{DType, Device};

use super::adapt::{adapt, adapt_quantized};
use super::adaptation::{Adaptation, AdaptedModule};
use super::folder::{Adapter, settings_beside};
use super::mixed::{Mixed, MixedSource};
use super::source::AdaptedSource;
use crate::gguf;
use crate::model::hf::{NewRows, load_from, open_weights};
use crate::model::{Decoder, HfConfig, LoadedModel};

/// Where the tokenizer of a model with adapters lies, and the chat template that it was trained with: in the folder of the
/// last adapter that has one, else in that of the model.
pub fn tokenizer_folder<'d>(dir: &'d Path, adapters: &'d [PathBuf]) -> &'d Path {
    let has_one = |dir: &&PathBuf| gguf::has_file(dir, "tokenizer.json");
    adapters.iter().rev().find(has_one).map_or(dir, PathBuf::as_path)
}

/// Loads a Hugging Face folder for inference with adapters merged into it, in order. Weights that the folder holds in 4 or
/// 8 bits of bitsandbytes stay so, with an adapter beside them, unless there are several.
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
    load_for_inference_as(settings_beside(dir, adapters)?, dir, adapters, device, dtype, n_positions)
}

/// As [`load_for_inference`], with other settings than those of the folders: [`settings_beside`], changed.
///
/// # Errors
/// As [`load_for_inference`].
pub fn load_for_inference_as(
    mut config: HfConfig,
    dir: &Path,
    adapters: &[PathBuf],
    device: &Device,
    dtype: DType,
    n_positions: usize,
) -> Result<LoadedModel> {
    if config.quantization().is_some_and(StoredQuantization::is_kept) && adapters.len() < 2 {
        return beside(config, dir, adapters, None, device, dtype, n_positions);
    }
    let n_positions = config.decoder().positions(n_positions);
    let mut decoder = Decoder::new(config.decoder().clone(), n_positions)?;
    let mut source = merging(dir, &config, &mut decoder, adapters, None, device)?;
    config.note(source.notes());
    load_from(config, decoder, &mut source, device, dtype, n_positions)
}

/// As [`load_for_inference_as`], with further adapters beside the weights, of which each row of a pass takes its own
/// ([`for_rows`](crate::model::for_rows)). For each of them its number; `None` for one that can only be merged: one of DoRA or
/// OFT, one that changes more than linear layers or the settings of the model, and any where the weights stay quantized.
///
/// # Errors
/// As [`load_for_inference`].
pub fn load_with_adapters_as(
    mut config: HfConfig,
    dir: &Path,
    merged: &[PathBuf],
    beside: &[PathBuf],
    device: &Device,
    dtype: DType,
    n_positions: usize,
) -> Result<(LoadedModel, Vec<Option<usize>>)> {
    if beside.is_empty() || config.quantization().is_some_and(StoredQuantization::is_kept) {
        let model = load_for_inference_as(config, dir, merged, device, dtype, n_positions)?;
        return Ok((model, vec![None; beside.len()]));
    }
    let n_positions = config.decoder().positions(n_positions);
    let mut decoder = Decoder::new(config.decoder().clone(), n_positions)?;
    let base = merging(dir, &config, &mut decoder, merged, None, device)?;
    let own = settings_beside(dir, merged)?;
    let (mut adapters, mut numbers) = (Vec::new(), Vec::with_capacity(beside.len()));
    for path in beside {
        let adapter = Adapter::open(path, &config, &mut decoder)?;
        let with = settings_beside(dir, &[merged, std::slice::from_ref(path)].concat())?;
        let can_mix = adapter.is_of_layers_alone() && with.decoder() == own.decoder();
        numbers.push(can_mix.then_some(adapters.len()));
        adapters.extend(can_mix.then_some(adapter));
    }
    decoder.map_linears(|path, linear| {
        let rank = |adapter: &Adapter| match adapter.module(path) {
            Some(AdaptedModule::LowRank(low_rank)) => Some(low_rank),
            _ => None,
        };
        let ranks: Vec<_> = adapters.iter().map(rank).collect();
        Ok(Mixed::around(linear, &ranks)?.map(|mixed| Box::new(mixed) as Box<dyn Layer>))
    })?;
    let mut source = MixedSource { base, adapters };
    config.note(source.notes());
    let model = load_from(config, decoder, &mut source, device, dtype, n_positions)?;
    Ok((model, numbers))
}

/// As [`load_for_inference`] with quantized weights in the linear layers, and at most one adapter, which stays beside them:
/// what it was trained against, in a fourth or half of the memory.
///
/// # Errors
/// As [`load_for_inference`], and more than one adapter.
pub fn load_quantized_for_inference(
    dir: &Path,
    adapters: &[PathBuf],
    format: Format,
    device: &Device,
    dtype: DType,
    n_positions: usize,
) -> Result<LoadedModel> {
    let config = settings_beside(dir, adapters)?;
    load_quantized_for_inference_as(config, dir, adapters, format, device, dtype, n_positions)
}

/// As [`load_quantized_for_inference`], with other settings than those of the folders: [`settings_beside`], changed.
///
/// # Errors
/// As [`load_quantized_for_inference`].
pub fn load_quantized_for_inference_as(
    config: HfConfig,
    dir: &Path,
    adapters: &[PathBuf],
    format: Format,
    device: &Device,
    dtype: DType,
    n_positions: usize,
) -> Result<LoadedModel> {
    if adapters.len() > 1 {
        return Err(Error::Usage(
            "a quantized model takes a single adapter; merge the adapters into the unquantized model first"
                .to_owned(),
        ));
    }
    beside(config, dir, adapters, Some(format), device, dtype, n_positions)
}

/// The model with the last adapter beside it, as it was trained, and the others merged into it, unless its weights are
/// quantized, in this format or as the folder holds them.
pub(crate) fn beside(
    mut config: HfConfig,
    dir: &Path,
    adapters: &[PathBuf],
    format: Option<Format>,
    device: &Device,
    dtype: DType,
    n_positions: usize,
) -> Result<LoadedModel> {
    let n_positions = config.decoder().positions(n_positions);
    let new = || Decoder::new(config.decoder().clone(), n_positions);
    let (decoder, mut source) = assemble(dir, &config, &new, adapters, format, device, dtype)?;
    config.note(source.notes());
    load_from(config, decoder, &mut source, device, dtype, n_positions)
}

/// The model of [`beside`], made of one that is `new`, and its weights.
pub(crate) fn assemble(
    dir: &Path,
    config: &HfConfig,
    new: &dyn Fn() -> Result<Decoder>,
    adapters: &[PathBuf],
    format: Option<Format>,
    device: &Device,
    dtype: DType,
) -> Result<(Decoder, AdaptedSource)> {
    let (mut plain, mut decoder) = (new()?, new()?);
    let (last, merged) = match adapters.split_last() {
        Some((last, merged)) => (Some(Adapter::open(last, config, &mut plain)?), merged),
        None => (None, adapters),
    };
    let adaptation = last.as_ref().map(Adaptation::of);
    let full = open_weights(dir, config, &NewRows::default(), device)?;
    let stored = config.quantization().is_some_and(StoredQuantization::is_kept);
    let layers = match stored {
        // What is merged into goes from few bits to what they stand for.
        _ if !merged.is_empty() => None,
        true => Some(SafetensorsSource::open(dir, config, &plain)?.quantized_layers()),
        false => format.map(QuantizedLayers::All),
    };
    let weights = match (&adaptation, layers) {
        (Some(adaptation), Some(layers)) => Some(adapt_quantized(&mut decoder, adaptation, &layers, dtype)?),
        (None, Some(layers)) => Some(decoder.quantize(layers, dtype)?),
        (Some(adaptation), None) => {
            adapt(&mut decoder, adaptation)?;
            None
        }
        (None, None) => None,
    };
    let source = match weights {
        Some(_) if stored => AdaptedSource::new(full, &plain, 0, device),
        Some(weights) => AdaptedSource::new(Box::new(weights.source(full, device)), &plain, 0, device),
        None => merging(dir, config, &mut plain, merged, format, device)?,
    };
    Ok((decoder, source.continuing(last)))
}

/// The weights of a folder with adapters merged into them. With a format, into what its few bits stand for.
pub(crate) fn merging(
    dir: &Path,
    hf: &HfConfig,
    decoder: &mut Decoder,
    adapters: &[PathBuf],
    format: Option<Format>,
    device: &Device,
) -> Result<AdaptedSource> {
    let merged = adapters.iter().map(|dir| Adapter::open(dir, hf, decoder)).collect::<Result<_>>()?;
    let full = open_weights(dir, hf, &NewRows::default(), device)?;
    let base: Box<dyn WeightSource> = match format {
        None => full,
        Some(format) => {
            let mut quantized = Decoder::new(hf.decoder().clone(), 1)?;
            Box::new(quantized.quantize(format, DType::F32)?.source(full, device))
        }
    };
    Ok(AdaptedSource::new(base, decoder, 0, device).merging(merged))
}
