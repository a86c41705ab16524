//! What a configuration asks of the engine, the optimizer and the model.

use oarlock_tensor::DType;

use crate::accelerator::{AcceleratorConfig, engine_options};
use crate::config::{TrainConfig, Wrap};
use crate::error::{Error, Result};
use crate::model::Decoder;
use crate::optim::Optim;
use crate::train::model;

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
        seed: Some(config.train.seed),
        ..AcceleratorConfig::default()
    })
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

/// The optimizer that a configuration asks for: all parameters of the model, vectors (biases and norms) without weight
/// decay.
pub fn optimizer(config: &TrainConfig, model: &Decoder) -> Optim {
    let args = &config.train.optimizer;
    let optim = Optim::new(model, args.rule.clone(), config.train.schedule.learning_rate, args.weight_decay)
        .no_decay_of_vectors(model);
    match config.train.dtype {
        DType::F16 => optim.loss_scale(config.train.loss_scale),
        _ => optim,
    }
}
