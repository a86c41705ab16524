//! Whether a run keeps the quantized weights of a GGUF file in the blocks of the file.

use oarlock_config::config::{Finetuning, GgufWeights, ModelSource, Predict, TrainConfig};
use oarlock_engine::checkpoint::weights::QuantizedLayers;
use oarlock_engine::{Error, Result};

use crate::gguf::is_gguf;
use crate::model::{HfConfig, layers_in_blocks};

/// The layers whose weights stay in blocks, and what the log says of it. `None` where the model is no GGUF file with quantized
/// weights, or nobody trains beside them. `continues_pissa` says that the adapter of the run begins as one of PiSSA.
///
/// # Errors
/// Blocks that are asked for where they cannot be kept, and what is wrong with the file.
pub(super) fn kept(
    config: &TrainConfig,
    hf: &HfConfig,
    continues_pissa: bool,
) -> Result<Option<(Option<QuantizedLayers>, String)>> {
    let wanted = config.model.gguf_weights;
    let refuse = |reason: &str| {
        Err(Error::Model(format!(
            "`gguf_weights: blocks`: {reason}; write `gguf_weights: auto`, which dequantizes where it must"
        )))
    };
    let file = match &config.model.source {
        ModelSource::Folder(file) if !config.model.from_scratch && is_gguf(file) => file,
        _ if wanted == GgufWeights::Blocks => return refuse("the model is no GGUF file"),
        _ => return Ok(None),
    };
    if wanted == GgufWeights::Dequantized {
        return Ok(None);
    }
    if let Some(reason) = obstacle(config, hf, continues_pissa) {
        return match wanted {
            GgufWeights::Blocks => refuse(reason),
            // Without adapters nothing else could be expected.
            _ if !matches!(config.train.finetuning, Finetuning::Adapter(_)) => Ok(None),
            _ => {
                let dtype = config.train.dtype;
                let message = || format!("the weights of the GGUF file are dequantized to {dtype}: {reason}");
                Ok((!layers_in_blocks(file, hf)?.is_empty()).then(|| (None, message())))
            }
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
        "the weights of the linear layers stay in the blocks of the file ({}) and are dequantized part by part; embedding, norms and output weights are in {}",
        types.join(", "),
        config.train.dtype
    );
    Ok(Some((Some(QuantizedLayers::At(layers)), message)))
}

/// Why weights in blocks cannot stay so, or had better not.
fn obstacle(config: &TrainConfig, hf: &HfConfig, continues_pissa: bool) -> Option<&'static str> {
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
    if continues_pissa {
        return Some("an adapter of PiSSA changes the weights beside it");
    }
    if hf.has_grown() {
        return Some("the vocabulary grows");
    }
    let only_answers = !config.train.enabled && matches!(config.predict, Some(Predict::Answers(_)));
    (only_answers && config.model.gguf_weights == GgufWeights::Auto)
        .then_some("answers come token by token, and each would dequantize all weights")
}
