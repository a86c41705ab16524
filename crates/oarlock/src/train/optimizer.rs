//! The optimizer over a prepared model: AdamW with two parameter groups, decayed and not.

use oarlock_tensor::Shape;
use oarlock_tensor::ops::optimizer::{Rule, StepArgs};

use crate::error::{Error, Result};
use crate::shard::Engine;

/// AdamW (Loshchilov and Hutter 2019), with the defaults of `torch.optim.AdamW` as transformers' Trainer sets them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of the parameters that decay.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> AdamWConfig {
        AdamWConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

impl AdamWConfig {
    /// Whether weight decay applies to a parameter: not to biases and norms, which are vectors.
    pub fn decays(_name: &str, shape: &Shape) -> bool {
        shape.sizes().len() >= 2
    }
}

/// The optimizer of a prepared model.
pub struct Optimizer {
    engine: Engine,
    config: AdamWConfig,
    /// What the next step multiplies the gradients with.
    grad_scale: f32,
}

impl Optimizer {
    pub(crate) fn new(engine: Engine, config: AdamWConfig) -> Optimizer {
        Optimizer { engine, config, grad_scale: 1.0 }
    }

    /// The engine that holds the model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine that holds the model.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The optimizer steps done.
    pub fn n_steps(&self) -> u64 {
        self.engine.n_steps()
    }

    /// See [`Accelerator::clip_grad_norm`](crate::Accelerator::clip_grad_norm).
    pub(crate) fn clip_grad_norm(&mut self, max_norm: f64) -> Result<f64> {
        let found = self.engine.grad_norm()?;
        if let Some(unit) = found.first_bad_unit {
            let unit = self.engine.unit_name(unit).to_string();
            return Err(Error::NotFinite { step: self.n_steps() + 1, unit });
        }
        // torch.nn.utils.clip_grad_norm_ in f32: max_norm / (norm + 1e-6), at most 1.
        let coefficient = max_norm as f32 / (found.norm as f32 + 1e-6);
        self.grad_scale = if max_norm > 0.0 { coefficient.min(1.0) } else { 1.0 };
        Ok(found.norm)
    }

    /// Updates the weights with the gradients summed over all ranks, and forgets the gradients.
    ///
    /// # Errors
    /// When a rank failed, or somebody still holds a weight.
    pub fn step(&mut self, lr: f64) -> Result<()> {
        let AdamWConfig { beta1, beta2, eps, weight_decay } = self.config;
        let step = self.engine.n_steps() + 1;
        let args = StepArgs { step, lr, weight_decay, grad_scale: self.grad_scale };
        self.engine.step(&Rule::AdamW { beta1, beta2, eps }, &args)?;
        self.grad_scale = 1.0;
        Ok(())
    }
}
