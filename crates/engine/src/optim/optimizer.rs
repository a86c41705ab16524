//! The optimizer over a prepared model: the hyperparameters of its parameter groups, loss scale, clipping, the step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_config::config::LossScale;
use oarlock_tensor::DType;
use oarlock_tensor::ops::optimizer::{Role, Rule};

use super::loss_scale::{LossScaler, LossScalerState, Verdict};
use crate::nn::NamedParam;
use crate::shard::{Engine, ParamGroup, role_of};
use crate::{Error, Result};

/// Which optimizer, and its hyperparameters.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    /// How gradients change weights.
    pub rule: Rule,
    /// Weight decay of the parameters that decay.
    pub weight_decay: f64,
    /// Words in the names of the matrices to which a rule for hidden matrices applies; empty for all of them.
    pub targets: Vec<String>,
    /// How the loss is scaled before the backward pass; by default DeepSpeed's dynamic scale in f16, and not otherwise.
    pub loss_scale: Option<LossScale>,
}

impl Default for OptimizerConfig {
    /// AdamW (Loshchilov and Hutter 2019) with the defaults of transformers' Trainer.
    fn default() -> OptimizerConfig {
        OptimizerConfig {
            rule: Rule::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 },
            weight_decay: 0.0,
            targets: Vec::new(),
            loss_scale: None,
        }
    }
}

impl OptimizerConfig {
    /// What a parameter is to the optimizer: embeddings and the head are not hidden matrices.
    pub fn role(param: &NamedParam) -> Role {
        role_of(&param.name, param.param.shape())
    }

    /// The same where names select the matrices.
    pub fn role_by_targets(&self, param: &NamedParam) -> Role {
        match self.targets.as_slice() {
            [] => OptimizerConfig::role(param),
            names if !names.iter().any(|name| param.name.contains(name)) => Role::Other,
            _ if param.param.shape().sizes().len() == 2 => Role::Matrix,
            _ => Role::Other,
        }
    }
}

/// The optimizer of a prepared model.
pub struct Optimizer {
    engine: Engine,
    /// Their learning rates are those of the last step.
    param_groups: Vec<ParamGroup>,
    /// One for all optimizers of an accelerator.
    scaler: Option<Arc<Mutex<LossScaler>>>,
    /// The scale of the accumulated gradients, where the scaler may have moved since.
    window_scale: Option<f64>,
    /// What the coming step divides the sum of gradients by.
    divisor: f64,
    /// What the norm of the coming step's gradients says; `None` until it is known.
    found: Option<Found>,
    /// Whether the gradients of the coming step are averages already, not sums that a divisor waits for.
    averaged: bool,
}

/// What is known of the gradients of the coming step.
struct Found {
    /// What the step multiplies the gradients with.
    grad_scale: f32,
    /// The first parameter whose gradient is not finite, with its unit.
    first_bad: Option<(String, String)>,
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// The weights were updated.
    Done,
    /// Gradients overflowed in f16 on some rank; no weight changed on any.
    Skipped {
        /// The line for the log.
        line: String,
    },
}

impl Optimizer {
    pub(crate) fn new(
        engine: Engine,
        param_groups: Vec<ParamGroup>,
        loss_scale: Option<LossScale>,
    ) -> Optimizer {
        let in_f16 = (engine.options().dtype == DType::F16).then_some(LossScale::UNSET);
        let scaler = loss_scale.or(in_f16).map(|rule| Arc::new(Mutex::new(LossScaler::new(rule))));
        Optimizer {
            engine,
            param_groups,
            scaler,
            window_scale: None,
            divisor: 1.0,
            found: None,
            averaged: false,
        }
    }

    /// The engine that holds the model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine that holds the model.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The optimizer steps done; those that were skipped do not count.
    pub fn n_steps(&self) -> u64 {
        self.engine.n_steps()
    }

    /// From now on the two have one loss scale, which every step of either moves: torch's one `GradScaler`. Optimizers
    /// with other rules keep their own.
    pub(crate) fn share_loss_scale(&mut self, other: &Optimizer) {
        if let (Some(own), Some(shared)) = (&self.scaler, &other.scaler)
            && locked(own).rule() == locked(shared).rule()
        {
            self.scaler = Some(shared.clone());
        }
    }

    /// The factor of the loss in the backward pass; 1 without loss scaling.
    pub fn loss_scale(&self) -> f64 {
        let scale = self.window_scale.or_else(|| self.scaler.as_ref().map(|scaler| locked(scaler).scale()));
        scale.unwrap_or(1.0)
    }

    /// The scale of the accumulated gradients, if there are any.
    pub(crate) fn window_scale(&self) -> Option<f64> {
        self.window_scale
    }

    /// A backward pass of the coming step had this scale.
    pub(crate) fn set_window_scale(&mut self, scale: f64) {
        self.window_scale = Some(scale);
    }

    /// What a checkpoint keeps of the loss scale.
    pub fn loss_scale_state(&self) -> Option<LossScalerState> {
        self.scaler.as_ref().map(|scaler| locked(scaler).state())
    }

    /// Goes on with the loss scale of a checkpoint.
    pub fn resume_loss_scale(&mut self, state: LossScalerState) {
        if let Some(scaler) = &self.scaler {
            locked(scaler).resume(state);
        }
    }

    /// How gradients change the weights of the first group.
    pub fn rule(&self) -> &Rule {
        self.param_groups.first().map_or(self.engine.rule(), |group| &group.rule)
    }

    /// The coming step, and its norm, divide the sum of all gradients by this.
    pub(crate) fn divide_by(&mut self, divisor: f64) {
        self.divisor = divisor;
    }

    /// Scales the gradients of the coming step down so that their global L2 norm is at most `max_norm` (0: never), and
    /// returns the norm before that.
    ///
    /// # Errors
    /// When a rank failed, or the gradients are not finite and there is no loss scale that could follow.
    pub fn clip_grad_norm(&mut self, max_norm: f64) -> Result<f64> {
        let found = self.engine.grad_norm()?;
        if let (Some((unit, parameter)), None) = (&found.first_bad, &self.scaler) {
            let (unit, parameter) = (unit.clone(), parameter.clone());
            return Err(Error::NotFinite { step: self.n_steps() + 1, unit, parameter });
        }
        let scale = if self.averaged { 1.0 } else { self.loss_scale() * self.divisor };
        let norm = found.norm / scale;
        // torch.nn.utils.clip_grad_norm_ in f32: max_norm / (norm + 1e-6), at most 1.
        let coefficient = max_norm as f32 / (norm as f32 + 1e-6);
        let coefficient = if max_norm > 0.0 { coefficient.min(1.0) } else { 1.0 };
        let grad_scale = (f64::from(coefficient) / scale) as f32;
        // What was cut off before may have hidden an infinity.
        let earlier = self.found.take().and_then(|found| found.first_bad);
        self.found = Some(Found { grad_scale, first_bad: earlier.or(found.first_bad) });
        Ok(norm)
    }

    /// Makes averages of the gradients of the coming step and cuts their elements off at `-value` and `value`; what a
    /// clipping by norm has found before is applied first.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn clip_grad_value(&mut self, value: f32) -> Result<()> {
        if self.scaler.is_some() && self.found.is_none() {
            self.clip_grad_norm(0.0)?;
        }
        let found = self.found.take().unwrap_or_else(|| self.unclipped());
        self.engine.clip_grad_value(found.grad_scale, value)?;
        self.averaged = true;
        self.found = Some(Found { grad_scale: 1.0, ..found });
        Ok(())
    }

    /// What a step does without any clipping and loss scaling.
    fn unclipped(&self) -> Found {
        Found { grad_scale: (1.0 / self.divisor) as f32, first_bad: None }
    }

    /// Forgets the gradients, and what was found out about them.
    ///
    /// # Errors
    /// While a tensor of a unit is held outside of it.
    pub fn clear_grads(&mut self) -> Result<()> {
        self.forget();
        self.engine.clear_grads()
    }

    /// Forgets what was found out about gradients that are gone.
    pub(crate) fn forget(&mut self) {
        (self.divisor, self.found, self.averaged, self.window_scale) = (1.0, None, false, None);
    }

    /// Updates the weights with the gradients summed over all ranks, at a learning rate for each group, and with the decays
    /// of the moments where a schedule sets them; then forgets the gradients. With loss scaling, a step whose gradients
    /// overflowed on any rank is skipped on all, and the scale follows.
    ///
    /// # Errors
    /// When a rank failed, somebody still holds a weight, the gradients are not finite and there is no loss scale that could
    /// follow, or the loss scale cannot fall any further.
    pub fn step(&mut self, betas: Option<[f64; 2]>, lr: impl Fn(usize) -> f64) -> Result<Stepped> {
        if self.found.is_none() {
            // Nothing is scaled down, but what is not finite is found before it goes into the weights.
            self.clip_grad_norm(0.0)?;
        }
        let found = self.found.take().unwrap_or_else(|| self.unclipped());
        self.forget();
        if let Some(scaler) = &self.scaler {
            let verdict = locked(scaler).update(found.first_bad.is_some());
            let verdict = verdict.map_err(|error| match &found.first_bad {
                Some((unit, parameter)) => error.found_in(format!("\"{parameter}\" of the unit \"{unit}\"")),
                None => error,
            })?;
            if let Verdict::Skip { line } = verdict {
                self.engine.clear_grads()?;
                return Ok(Stepped::Skipped { line });
            }
        }
        for (index, group) in self.param_groups.iter_mut().enumerate() {
            group.lr = lr(index);
            if let Some(betas) = betas {
                group.rule = group.rule.clone().with_betas(betas);
            }
        }
        self.engine.step(&self.param_groups, found.grad_scale)?;
        Ok(Stepped::Done)
    }
}

fn locked(scaler: &Mutex<LossScaler>) -> MutexGuard<'_, LossScaler> {
    // Numbers, which an update leaves whole.
    scaler.lock().unwrap_or_else(PoisonError::into_inner)
}
