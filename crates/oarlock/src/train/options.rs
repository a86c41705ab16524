//! What a configuration asks of the engine, the optimizer and the model.

use oarlock_tensor::DType;

use crate::accelerator::AcceleratorConfig;
use crate::config::{ShardArgs, ShardGroup, TrainConfig, Wrap};
use crate::error::{Error, Result};
use crate::model::Decoder;
use crate::shard::{Options, Placements};
use crate::train::{OptimizerConfig, model};

/// How a configuration asks for an accelerator. Reads the model's settings, because sizes follow from them.
///
/// # Errors
/// A CPU path that does not exist, or a model that cannot be read.
pub fn accelerator_config(config: &TrainConfig) -> Result<AcceleratorConfig> {
    let cpu_path = config.ranks.cpu_path.as_deref().map(str::parse).transpose().map_err(Error::Usage)?;
    let hidden_size = model::settings(&config.model)?.decoder().hidden_size;
    Ok(AcceleratorConfig {
        shard: engine_options(&config.shard, config.train.dtype, hidden_size),
        threads: config.ranks.threads,
        cpu_path,
        ..AcceleratorConfig::default()
    })
}

/// How an engine holds a model of this hidden size, which counts only where sizes follow from it.
pub fn engine_options(shard: &ShardArgs, dtype: DType, hidden_size: usize) -> Options {
    let ShardArgs { optimizer, gradients, parameters, lifetime, group, .. } = *shard;
    Options {
        dtype,
        placements: Placements { optimizer, gradients, parameters },
        lifetime,
        group: match group {
            ShardGroup::World | ShardGroup::Machine => None,
            ShardGroup::Ranks(ranks) => Some(ranks),
        },
        by_machine: group == ShardGroup::Machine,
        secondary: shard.secondary,
        wrap: shard.wrap.clone(),
        prefetch_elems: shard.prefetch.of(hidden_size),
        max_live_elems: shard.max_live.of(hidden_size),
        persistence_elems: shard.persistence.of(hidden_size),
        reduce_bucket_elems: shard.reduce_bucket.of(hidden_size),
        reduce_dtype: shard.reduce_dtype.unwrap_or(DType::F32),
        offload_optimizer: shard.offload_optimizer.clone(),
        offload_params: shard.offload_parameters.clone(),
        ..Options::default()
    }
}

/// What to say of a class of units that the model of a configuration lacks. What else is wrong with the model is told where
/// it is read.
pub fn missing_class(config: &TrainConfig) -> Option<String> {
    if !matches!(config.shard.wrap, Wrap::Transformer(_)) {
        return None;
    }
    let hf = model::settings(&config.model).ok()?;
    let decoder = Decoder::new(hf.decoder().clone(), config.data.cutoff_len).ok()?;
    config.shard.wrap.missing(&decoder)
}

/// How a configuration asks for an optimizer.
pub fn optimizer_config(config: &TrainConfig) -> OptimizerConfig {
    let args = &config.train.optimizer;
    OptimizerConfig {
        rule: args.rule,
        weight_decay: args.weight_decay,
        loss_scale: (config.train.dtype == DType::F16).then_some(config.train.loss_scale),
    }
}
