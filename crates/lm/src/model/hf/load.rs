//! A model for inference: its weights in memory, without gradients and optimizer state.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use oarlock_engine::checkpoint::weights::{QuantizedLayers, SafetensorsSource};
use oarlock_engine::nn::{NamedParam, units_of};
use oarlock_engine::shard::{Grain, Layout, ParamSlice, WeightSource, check_range, in_order_on};
use oarlock_engine::{Error, Result};
use oarlock_tensor::cpu::quantized::Format;
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, Device, FlatBuffer, FlatParams, ParamLocation};

use super::config::HfConfig;
use crate::model::decoder::Decoder;

/// Elements that are converted at a time.
const CHUNK_ELEMS: usize = 1 << 18;

/// A model that can be asked.
#[derive(Debug)]
pub struct LoadedModel {
    /// The settings of its folder.
    pub config: HfConfig,
    /// The model.
    pub decoder: Decoder,
    /// The dtype that it computes in.
    pub dtype: DType,
    /// Where it lives.
    pub device: Device,
    /// The longest sequence that it can take.
    pub n_positions: usize,
}

/// Loads a Hugging Face folder for inference in `dtype` (f32, bf16 or f16), for sequences of up to `n_positions` or what
/// the model allows, whichever is less.
///
/// # Errors
/// What is wrong with the folder, or no memory.
pub fn load_for_inference(
    dir: &Path,
    device: &Device,
    dtype: DType,
    n_positions: usize,
) -> Result<LoadedModel> {
    let mut config = HfConfig::read(dir)?;
    let n_positions = config.decoder().positions(n_positions);
    let decoder = Decoder::new(config.decoder().clone(), n_positions)?;
    let mut source = SafetensorsSource::open(dir, &config, &decoder)?;
    config.note(source.notes());
    load_from(config, decoder, &mut source, device, dtype, n_positions)
}

/// Loads a GGUF file for inference with its weights in the blocks that they have there: embedding, linear layers and output
/// weights compute with these, by products of integers, and the model takes about the memory of the file. The activations
/// are in `dtype`. `None` if no weight is in such blocks.
///
/// # Errors
/// As [`load_for_inference`].
pub fn load_in_blocks(
    mut config: HfConfig,
    file: &Path,
    device: &Device,
    dtype: DType,
    n_positions: usize,
) -> Result<Option<LoadedModel>> {
    let n_positions = config.decoder().positions(n_positions);
    let mut decoder = Decoder::new(config.decoder().clone(), n_positions)?;
    let mut source = SafetensorsSource::open(file, &config, &decoder)?.in_panels();
    let layouts = source.matrices_in_blocks();
    if layouts.is_empty() {
        return Ok(None);
    }
    decoder.keep_blocks(&layouts, dtype)?;
    config.note(source.notes());
    load_from(config, decoder, &mut source, device, dtype, n_positions).map(Some)
}

/// Gives a decoder, which may hold other layers than those of its settings, the weights of a source, for inference in
/// `dtype`.
///
/// # Errors
/// A dtype that is not a float, what the source reports, or no memory.
pub fn load_from(
    config: HfConfig,
    decoder: Decoder,
    source: &mut dyn WeightSource,
    device: &Device,
    dtype: DType,
    n_positions: usize,
) -> Result<LoadedModel> {
    if !dtype.is_float() {
        return Err(Error::Usage(format!("a model cannot compute in {dtype}; give f32, bf16 or f16")));
    }
    for unit in units_of(&decoder) {
        for (dtype, params) in unit.by_dtype(dtype) {
            fill(&in_order_on(device, params), source, device, dtype)?;
        }
    }
    Ok(LoadedModel { config, decoder, dtype, device: device.clone(), n_positions })
}

fn fill(params: &[NamedParam], source: &mut dyn WeightSource, device: &Device, dtype: DType) -> Result<()> {
    let layout = Layout::new(params.iter().map(|p| (p.name.clone(), *p.param.shape(), 0)), Grain::Blocks);
    let flat = FlatBuffer::pooled(device, layout.n_elems() * dtype.size(), "weights")?;
    let mut values = vec![0.0; CHUNK_ELEMS];
    for (named, placed) in params.iter().zip(layout.params()) {
        let n_elems = placed.place.shape.n_elems();
        for start in (0..n_elems).step_by(CHUNK_ELEMS) {
            let elements = start..(start + CHUNK_ELEMS).min(n_elems);
            let values = &mut values[..elements.len()];
            let first = placed.place.first + start;
            source.read(&ParamSlice::of(named, elements), values)?;
            check_range(&named.name, n_elems, values, dtype)?;
            transfer::store(device, values, &flat, first, dtype)?;
        }
    }
    let places: Vec<ParamLocation> = layout.params().iter().map(|p| p.place).collect();
    let home = Arc::new(FlatParams::new(places, dtype, flat, None, device)?);
    for (index, named) in params.iter().enumerate() {
        named.param.settle(home.clone(), index);
    }
    Ok(())
}

/// The linear layers of the blocks of a model whose weights a GGUF file holds in blocks, with their types; of any other file or
/// folder none.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn layers_in_blocks(file: &Path, hf: &HfConfig) -> Result<BTreeMap<String, Format>> {
    let stored = hf.as_stored();
    let plain = Decoder::new(stored.decoder().clone(), 1)?;
    let QuantizedLayers::At(mut layers) = SafetensorsSource::open(file, &stored, &plain)?.layers_in_blocks()
    else {
        return Ok(BTreeMap::new());
    };
    layers.retain(|path, _| path != "lm_head" && path != "model.embed_tokens");
    Ok(layers)
}
