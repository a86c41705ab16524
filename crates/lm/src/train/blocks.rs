//! Whether a run keeps the quantized weights of a GGUF file in the blocks of the file.

use oarlock_config::config::{Finetuning, GgufWeights, ModelSource, Predict, TrainConfig};
use oarlock_engine::checkpoint::weights::QuantizedLayers;
use oarlock_engine::{Error, Result};

use crate::gguf::is_gguf;
use crate::model::{HfConfig, layers_in_blocks};

/// How the line begins that says that weights stay in blocks.
pub(super) const KEPT: &str = "the weights of the linear layers stay in the blocks of the file";

/// The layers whose weights stay in blocks, and what the log says of it. `None` where the model is no GGUF file with quantized
/// weights, or nobody trains beside them.
///
/// # Errors
/// Blocks that are asked for where they cannot be kept, and what is wrong with the file.
pub(super) fn kept(config: &TrainConfig, hf: &HfConfig) -> Result<Option<(Option<QuantizedLayers>, String)>> {
    let wanted = config.model.gguf_weights;
    let refuse = |reason: &str| {
        Err(Error::Model(format!(
            "`gguf_weights: blocks`: {reason}; write `gguf_weights: auto`, which dequantizes where it must"
        )))
    };
    let ModelSource::Folder(file) = &config.model.source else {
        return if wanted == GgufWeights::Blocks { refuse("the model is no GGUF file") } else { Ok(None) };
    };
    if config.model.from_scratch || !is_gguf(file) {
        return if wanted == GgufWeights::Blocks { refuse("the model is no GGUF file") } else { Ok(None) };
    }
    if wanted == GgufWeights::Dequantized {
        return Ok(None);
    }
    if let Some(reason) = obstacle(config, hf) {
        return match wanted {
            GgufWeights::Blocks => refuse(reason),
            // Without adapters nothing else could be expected.
            _ if !matches!(config.train.finetuning, Finetuning::Adapter(_)) => Ok(None),
            _ => Ok((!layers_in_blocks(file, hf)?.is_empty()).then(|| (None, dequantized(config, reason)))),
        };
    }
    let layers = layers_in_blocks(file, hf)?;
    if layers.is_empty() {
        return if wanted == GgufWeights::Blocks {
            refuse("the file has no quantized weights of linear layers")
        } else {
            Ok(None)
        };
    }
    let mut types: Vec<String> = layers.values().map(ToString::to_string).collect();
    types.sort_unstable();
    types.dedup();
    let message = format!(
        "{KEPT} ({}) and are dequantized part by part; embedding, norms and output weights are in {}",
        types.join(", "),
        config.train.dtype
    );
    Ok(Some((Some(QuantizedLayers::At(layers)), message)))
}

/// What the log says where blocks are dequantized that adapters could be trained beside.
pub(super) fn dequantized(config: &TrainConfig, reason: &str) -> String {
    format!("the weights of the GGUF file are dequantized to {}: {reason}", config.train.dtype)
}

/// Why weights in blocks cannot stay so, or had better not.
fn obstacle(config: &TrainConfig, hf: &HfConfig) -> Option<&'static str> {
    let Finetuning::Adapter(args) = &config.train.finetuning else {
        return Some("quantized weights can only be trained through adapters (finetuning_type lora or oft)");
    };
    if config.model.quantization.is_some() {
        return Some("`quantization_bit` quantizes the weights anew");
    }
    if config.ranks.device.is_gpu() {
        return Some("GPUs have no kernels for these blocks");
    }
    if args.adapters.len() > 1 || args.create_new && !args.adapters.is_empty() {
        return Some("adapters are merged into the weights, and nothing can be merged into blocks");
    }
    let begins_with_pissa = args.adapters.is_empty() && args.config.is_pissa();
    if config.train.enabled && begins_with_pissa {
        return Some("PiSSA begins with singular vectors of the weights, which the weights then lack");
    }
    if hf.has_grown() {
        return Some("the vocabulary grows");
    }
    let only_answers = !config.train.enabled && matches!(config.predict, Some(Predict::Answers(_)));
    (only_answers && config.model.gguf_weights == GgufWeights::Auto)
        .then_some("answers come token by token, and each would dequantize all weights")
}
