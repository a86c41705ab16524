//! What a configuration asks of the engine, the optimizer and the model.

use oarlock_config::config::{AdapterArgs, Finetuning, LoraPlus, TrainConfig, Wrap};
use oarlock_engine::nn::{self, NamedParam};
use oarlock_engine::optim::{Optim, Parameters};
use oarlock_engine::{AcceleratorConfig, Error, Result};
use oarlock_tensor::DType;

use crate::model::Decoder;
use crate::train::model;

/// How a configuration asks for an accelerator. Reads the model's settings, because sizes follow from them.
///
/// # Errors
/// A CPU path that does not exist, or a model that cannot be read.
pub fn accelerator_config(config: &TrainConfig) -> Result<AcceleratorConfig> {
    let cpu_path = config.ranks.cpu_path.as_deref().map(str::parse).transpose().map_err(Error::Usage)?;
    let hidden_size = model::settings(&config.model)?.decoder().hidden_size;
    Ok(AcceleratorConfig {
        shard: config.shard.resolve(config.train.dtype, hidden_size),
        sequence_parallel_size: config.ranks.sequence_parallel,
        threads: config.ranks.threads,
        device: config.ranks.device,
        tf32: config.train.tf32,
        cpu_path,
        seed: Some(config.train.seed),
        pipeline: config.ranks.pipeline.clone(),
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
    nn::missing_class(&config.shard.wrap, &decoder)
}

/// The optimizer that a configuration asks for: all parameters of the model, vectors (biases and norms) without weight
/// decay. With LoRA+, `lora_B` and vectors have another learning rate.
pub fn optimizer(config: &TrainConfig, model: &Decoder) -> Optim {
    let (args, lr) = (&config.train.optimizer, config.train.schedule.learning_rate);
    let plus = match &config.train.finetuning {
        Finetuning::Adapter(AdapterArgs { plus, .. }) => *plus,
        _ => None,
    };
    let is_vector = |named: &NamedParam| named.param.shape().sizes().len() < 2;
    // The original decays them.
    let is_magnitude = |named: &NamedParam| named.name.ends_with("lora_magnitude_vector");
    let no_decay = |named: &NamedParam| is_vector(named) && !is_magnitude(named);
    let fast = |named: &NamedParam| {
        plus.is_some() && !no_decay(named) && (named.name.ends_with("lora_B.weight") || is_magnitude(named))
    };
    let ratio = plus.map_or(1.0, |LoraPlus { lr_ratio }| lr_ratio);
    let targets: Vec<&str> = args.targets.iter().map(String::as_str).collect();
    let mut optim = Optim::new(model, args.rule.clone(), lr, args.weight_decay)
        .matrices(&targets)
        .group(Parameters::of(model).filter(no_decay), |group| group.weight_decay(0.0).lr(lr * ratio));
    if plus.is_some() {
        optim = optim.group(Parameters::of(model).filter(fast), |group| group.lr(lr * ratio));
    }
    match config.train.dtype {
        DType::F16 => optim.loss_scale(config.train.loss_scale),
        _ => optim,
    }
}
