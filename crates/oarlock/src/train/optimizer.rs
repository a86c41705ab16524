//! The optimizer over a prepared model: a rule, weight decay for matrices only, clipping.

use oarlock_tensor::ops::optimizer::{Role, Rule, StepArgs};

use crate::error::{Error, Result};
use crate::nn::NamedParam;
use crate::shard::Engine;

/// Which optimizer, and its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerConfig {
    /// How gradients change weights.
    pub rule: Rule,
    /// Weight decay of the parameters that decay.
    pub weight_decay: f64,
}

impl Default for OptimizerConfig {
    /// AdamW (Loshchilov and Hutter 2019) with the defaults of transformers' Trainer.
    fn default() -> OptimizerConfig {
        OptimizerConfig { rule: Rule::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 }, weight_decay: 0.0 }
    }
}

impl OptimizerConfig {
    /// Whether weight decay applies to a parameter: not to biases and norms, which are vectors.
    pub fn decays(param: &NamedParam) -> bool {
        param.param.shape().sizes().len() >= 2
    }

    /// What a parameter is to the optimizer: embeddings and the head are no hidden matrices.
    pub fn role(param: &NamedParam) -> Role {
        let outer = ["embed", "lm_head"].iter().any(|word| param.name.contains(word));
        if param.param.shape().sizes().len() == 2 && !outer { Role::Matrix } else { Role::Other }
    }
}

/// The optimizer of a prepared model.
pub struct Optimizer {
    engine: Engine,
    weight_decay: f64,
    /// What the next step multiplies the gradients with.
    grad_scale: f32,
}

impl Optimizer {
    pub(crate) fn new(engine: Engine, config: OptimizerConfig) -> Optimizer {
        Optimizer { engine, weight_decay: config.weight_decay, grad_scale: 1.0 }
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
        if let Some((unit, parameter)) = found.first_bad {
            return Err(Error::NotFinite { step: self.n_steps() + 1, unit, parameter });
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
        let (grad_scale, weight_decay) = (self.grad_scale, self.weight_decay);
        self.engine.step(StepArgs { step: 0, lr, weight_decay, grad_scale })?;
        self.grad_scale = 1.0;
        Ok(())
    }
}
