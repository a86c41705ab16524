//! What a configuration asks of the engine, the optimizer and the model.

use oarlock_tensor::DType;

use crate::accelerator::AcceleratorConfig;
use crate::config::{self, Precision, ShardArgs, ShardGroup, TrainConfig};
use crate::error::{Error, Result};
use crate::model::{Decoder, Recompute};
use crate::nn::Wrap;
use crate::shard::{Lifetime, Offload, Options, Placement, Placements};
use crate::train::{OptimizerConfig, model};

/// How a configuration asks for an accelerator. Reads the model's settings, because sizes follow from them.
///
/// # Errors
/// A CPU path that does not exist, or a model that cannot be read.
pub fn accelerator_config(config: &TrainConfig) -> Result<AcceleratorConfig> {
    let cpu_path = config.ranks.cpu_path.as_deref().map(str::parse).transpose().map_err(Error::Usage)?;
    let hidden_size = model::settings(&config.model)?.decoder().hidden_size;
    Ok(AcceleratorConfig {
        shard: engine_options(&config.shard, config.train.precision, hidden_size),
        threads: config.ranks.threads,
        cpu_path,
        ..AcceleratorConfig::default()
    })
}

/// How an engine holds a model of this hidden size, which counts only where sizes follow from it.
pub fn engine_options(shard: &ShardArgs, precision: Precision, hidden_size: usize) -> Options {
    let ShardArgs { optimizer, gradients, parameters, lifetime, group, .. } = *shard;
    Options {
        dtype: dtype(precision),
        placements: Placements {
            optimizer: placement(optimizer),
            gradients: placement(gradients),
            parameters: placement(parameters),
        },
        lifetime: match lifetime {
            config::Lifetime::OneUse => Lifetime::OneUse,
            config::Lifetime::ForwardToBackward => Lifetime::ForwardToBackward,
        },
        group: match group {
            // All ranks are those of one machine.
            ShardGroup::World | ShardGroup::Machine => None,
            ShardGroup::Ranks(ranks) => Some(ranks),
        },
        secondary: shard.secondary,
        wrap: wrap(&shard.wrap),
        prefetch_elems: shard.prefetch.of(hidden_size),
        max_live_elems: shard.max_live.of(hidden_size),
        persistence_elems: shard.persistence.of(hidden_size),
        reduce_bucket_elems: shard.reduce_bucket.of(hidden_size),
        reduce_dtype: shard.reduce_precision.map_or(DType::F32, dtype),
        offload_optimizer: offload(shard.offload_optimizer.as_ref()),
        offload_params: offload(shard.offload_parameters.as_ref()),
        ..Options::default()
    }
}

/// Which of a model's units are units.
pub fn wrap(wrap: &config::Wrap) -> Wrap {
    match wrap {
        config::Wrap::Declared => Wrap::Declared,
        config::Wrap::Classes(classes) => Wrap::Transformer(classes.clone()),
        config::Wrap::Size(least) => Wrap::Size(*least),
        config::Wrap::None => Wrap::None,
    }
}

/// What to say of a class of units that the model of a configuration lacks. What else is wrong with the model is told where
/// it is read.
pub fn missing_class(config: &TrainConfig) -> Option<String> {
    if !matches!(config.shard.wrap, config::Wrap::Classes(_)) {
        return None;
    }
    let hf = model::settings(&config.model).ok()?;
    let decoder = Decoder::new(hf.decoder().clone(), config.data.cutoff_len).ok()?;
    wrap(&config.shard.wrap).missing(&decoder)
}

/// How a configuration asks for an optimizer.
pub fn optimizer_config(config: &TrainConfig) -> OptimizerConfig {
    let args = &config.train.optimizer;
    OptimizerConfig {
        rule: args.rule,
        weight_decay: args.weight_decay,
        loss_scale: (config.train.precision == Precision::F16).then_some(config.train.loss_scale),
    }
}

/// Which activations are computed again.
pub fn recompute(config: &TrainConfig) -> Recompute {
    match config.train.recompute {
        config::Recompute::None => Recompute::None,
        config::Recompute::Units { every } => Recompute::Units { every },
        config::Recompute::Parts { attention, mlp } => Recompute::Parts { attention, mlp },
    }
}

fn dtype(precision: Precision) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 => DType::BF16,
        Precision::F16 => DType::F16,
    }
}

fn placement(placement: config::Placement) -> Placement {
    match placement {
        config::Placement::Whole => Placement::Whole,
        config::Placement::Sharded => Placement::Sharded,
    }
}

/// Files, where state is to lie there; the host's memory is where CPU ranks have it anyway.
fn offload(offload: Option<&config::Offload>) -> Option<Offload> {
    match offload? {
        config::Offload::Cpu => None,
        config::Offload::Nvme { path, sub_group_elems, buffers } => {
            Some(Offload { dir: path.clone(), sub_group_elems: *sub_group_elems, buffers: *buffers })
        }
    }
}
