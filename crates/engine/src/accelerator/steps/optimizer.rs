//! The optimizer of a prepared model: it steps when the window of micro-batches is complete, and does nothing before.

use std::cmp::Ordering;
use std::sync::Arc;

use oarlock_tensor::ops::optimizer::Rule;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accelerator::handle::{Accelerator, Inner};
use crate::accelerator::models::prepared_state::PreparedState;
use crate::accelerator::saving::stateful::Stateful;
use crate::optim::{LossScalerState, LrState, Stepped};
use crate::shard::Engine;
use crate::{Error, Result};

/// A prepared optimizer. Cloning gives another handle.
#[derive(Clone)]
pub struct PreparedOptimizer {
    pub(crate) state: Arc<PreparedState>,
    pub(crate) lr_state: LrState,
    inner: Arc<Inner>,
}

impl PreparedOptimizer {
    pub(crate) fn new(state: Arc<PreparedState>, lr_state: LrState, inner: Arc<Inner>) -> PreparedOptimizer {
        PreparedOptimizer { state, lr_state, inner }
    }

    /// One step with the gradients of the window, averaged over its micro-batches and all ranks; the gradients are
    /// forgotten afterward. While they accumulate it does nothing, and says `None`. All ranks call it.
    ///
    /// # Errors
    /// A window without any backward pass, a failed rank, gradients that are not finite
    /// ([`Error::NotFinite`](crate::Error::NotFinite) names the first parameter; torch would step with them), 16-bit
    /// gradients that overflow at the least loss scale. The weights are then what they were.
    #[track_caller]
    pub fn step(&self) -> Result<Option<Stepped>> {
        if !self.close()? {
            return Ok(None);
        }
        self.state.clip()?;
        let (lrs, betas) = (self.lr_state.lrs(), self.lr_state.betas());
        let stepped =
            self.state.optimizer()?.step(betas, |group| lrs.get(group).copied().unwrap_or_default())?;
        match stepped {
            Stepped::Done => self.state.update(),
            // The weights are what they were.
            _ => self.state.begin(),
        }
        self.lr_state.set_skipped(stepped != Stepped::Done);
        Ok(Some(stepped))
    }

    /// Forgets the accumulated gradients, where [`PreparedOptimizer::step`] would step; while they accumulate
    /// it does nothing. `step` has forgotten its own, so behind it there are only those that another model's loss left
    /// here, such as the generator's in a discriminator. All ranks call it.
    ///
    /// In the last micro-batch of a window, before its backward pass, it drops all that the window has gathered, as in
    /// Accelerate: the place for it is behind `step`. With a DeepSpeed configuration, whose loops step and forget by
    /// themselves, it leaves windows of several micro-batches alone, as there.
    ///
    /// # Errors
    /// While a tensor of a unit is held outside of it.
    pub fn zero_grad(&self) -> Result<()> {
        let accumulates = self.inner.accumulation().num_steps > 1;
        if self.inner.window.gradients().sync_gradients
            && !(accumulates && self.state.options.keeps_partial_windows)
        {
            self.state.optimizer()?.clear_grads()?;
            self.state.begin();
        }
        Ok(())
    }

    /// The learning rate of the next step, of group 0.
    pub fn lr(&self) -> f64 {
        self.lr_state.lr()
    }

    /// The learning rates of the next step, of all groups.
    pub fn group_lrs(&self) -> Vec<f64> {
        self.lr_state.lrs()
    }

    /// Sets the learning rate of the next step, for all groups.
    pub fn set_lr(&self, lr: f64) {
        self.lr_state.set_lrs(|_, _| lr);
    }

    /// Sets the learning rate of the next step for one group.
    ///
    /// # Errors
    /// A group that the optimizer does not have.
    pub fn set_group_lr(&self, group: usize, lr: f64) -> Result<()> {
        self.lr_state.set_group_lr(group, lr).ok_or_else(|| {
            Error::Usage(format!(
                "set_group_lr: there is no group {group}; the optimizer of {} has {}, counted from 0",
                self.state.name,
                self.lr_state.lrs().len()
            ))
        })
    }

    /// The factor of the coming loss in its backward pass: 1 but in f16. All optimizers of an accelerator have one scale,
    /// as with torch's `GradScaler`, and each step moves it; gradients that wait for their step keep that which they had.
    ///
    /// # Errors
    /// Before its model is prepared.
    pub fn loss_scale(&self) -> Result<f64> {
        Ok(self.state.optimizer()?.loss_scale())
    }

    /// Whether the loss is scaled at all, as it is in f16.
    ///
    /// # Errors
    /// Before its model is prepared.
    pub fn has_loss_scale(&self) -> Result<bool> {
        Ok(self.state.optimizer()?.loss_scale_state().is_some())
    }

    /// How the next step changes the weights of group 0, with the decays of the moments that a schedule has set.
    ///
    /// # Errors
    /// Before its model is prepared.
    pub fn rule(&self) -> Result<Rule> {
        let rule = self.state.optimizer()?.rule().clone();
        Ok(match self.lr_state.betas() {
            Some(betas) => rule.with_betas(betas),
            None => rule,
        })
    }

    /// Says that the passes recorded by now are the last of this step: no other backward pass adds to its gradients. To be
    /// called before the last `backward` of a window. With DDP and ZeRO-1 between machines the gradients of a unit then
    /// travel while the units before it still run backward; elsewhere it changes nothing. Results are bitwise identical
    /// with and without it.
    ///
    /// # Errors
    /// Before its model is prepared.
    pub fn expect_step(&self) -> Result<()> {
        self.state.optimizer()?.engine().expect_step();
        Ok(())
    }

    /// Sums the gradients of the window over all ranks, which clipping and the step do first otherwise: for loops that
    /// time it. While gradients accumulate it does nothing. All ranks call it.
    ///
    /// # Errors
    /// A window without any backward pass, a failed rank.
    #[track_caller]
    pub fn reduce_gradients(&self) -> Result<()> {
        if self.close()? {
            self.state.optimizer()?.engine_mut().reduce_grads()?;
        }
        Ok(())
    }

    /// Whether the last step was skipped because gradients overflowed.
    pub fn step_was_skipped(&self) -> bool {
        self.lr_state.skipped()
    }

    /// The steps done; those that were skipped do not count.
    ///
    /// # Errors
    /// Before its model is prepared.
    pub fn n_steps(&self) -> Result<u64> {
        Ok(self.state.optimizer()?.n_steps())
    }

    /// From now on the first moment of the parameter `name` is multiplied with `mask` whenever ranks have exchanged signs of
    /// it: DeepSpeed's `exp_avg_mask`, for elements whose gradient is always zero, which one bit cannot say. No checkpoint
    /// keeps it.
    ///
    /// # Errors
    /// Before its model is prepared; another optimizer than a 1-bit one, an unknown parameter, another number of elements.
    pub fn set_exp_avg_mask(&self, name: &str, mask: &[f32]) -> Result<()> {
        self.state.optimizer()?.engine_mut().set_exp_avg_mask(name, mask)
    }

    /// Looks at the engine that holds the model: where its state lies, and what it takes of memory.
    ///
    /// # Errors
    /// Before its model is prepared.
    pub fn with_engine<R>(&self, look: impl FnOnce(&Engine) -> R) -> Result<R> {
        Ok(look(self.state.optimizer()?.engine()))
    }

    /// Closes the window where the coming step is one; whether it is.
    #[track_caller]
    fn close(&self) -> Result<bool> {
        let steps = self.inner.window.gradients().sync_gradients;
        if steps {
            self.state.close(self.inner.ranks.data(), &self.inner.accumulation())?;
        }
        Ok(steps)
    }
}

impl Accelerator {
    /// Scales the gradients of the coming step down so that their global L2 norm is at most `max_norm` (0: never), and
    /// returns the norm before that; `None` while gradients accumulate.
    ///
    /// # Errors
    /// When a rank failed, or the gradients are not finite and there is no loss scale that could follow.
    #[track_caller]
    pub fn clip_grad_norm(&self, optimizer: &PreparedOptimizer, max_norm: f64) -> Result<Option<f64>> {
        check_bound(
            "clip_grad_norm: gradients are scaled down to a norm of more than 0, or with 0 not at all",
            max_norm,
        )?;
        if !optimizer.close()? {
            return Ok(None);
        }
        optimizer.state.optimizer()?.clip_grad_norm(max_norm).map(Some)
    }

    /// Cuts every element of the coming step's averaged gradients off at `-value` and `value`: torch's
    /// `clip_grad_value_`, which Accelerate refuses with DeepSpeed and FSDP; here it is right in every placement, to the
    /// same bits. Returns whether it did: gradients that accumulate stay as they are.
    ///
    /// # Errors
    /// A `value` below 0 or NaN, a failed rank, a window without any backward pass.
    #[track_caller]
    pub fn clip_grad_value(&self, optimizer: &PreparedOptimizer, value: f32) -> Result<bool> {
        check_bound("clip_grad_value: elements are cut off at 0 or more", f64::from(value))?;
        if !optimizer.close()? {
            return Ok(false);
        }
        optimizer.state.optimizer()?.clip_grad_value(value)?;
        Ok(true)
    }
}

/// What an optimizer keeps besides its engine's state.
pub(crate) struct Rate {
    pub state: Arc<PreparedState>,
    pub lr_state: LrState,
}

#[derive(Serialize, Deserialize)]
struct RateState {
    /// Of group 0.
    lr: f64,
    /// Of the others; older checkpoints know one rate.
    #[serde(default)]
    group_lrs: Option<Vec<f64>>,
    skipped: bool,
    loss_scale: Option<LossScalerState>,
}

impl Stateful for Rate {
    fn state_dict(&self) -> Result<Value> {
        let loss_scale = self.state.optimizer()?.loss_scale_state();
        let lrs = self.lr_state.lrs();
        let group_lrs = Some(lrs.iter().skip(1).copied().collect());
        let state =
            RateState { lr: self.lr_state.lr(), group_lrs, skipped: self.lr_state.skipped(), loss_scale };
        serde_json::to_value(state).map_err(|error| Error::Usage(format!("a learning rate: {error}")))
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        let RateState { lr, group_lrs, skipped, loss_scale } = RateState::deserialize(state)
            .map_err(|error| Error::Usage(format!("an optimizer cannot go on from {state}: {error}")))?;
        match group_lrs {
            Some(others) => self.lr_state.resume(&[&[lr], &*others].concat())?,
            None => self.lr_state.set_lrs(|_, _| lr),
        }
        self.lr_state.set_skipped(skipped);
        // A run in another dtype has no scale, or begins with its own.
        if let Some(loss_scale) = loss_scale {
            self.state.optimizer()?.resume_loss_scale(loss_scale);
        }
        Ok(())
    }
}

/// Refuses a bound below 0, or NaN.
fn check_bound(what: &str, bound: f64) -> Result<()> {
    match bound.partial_cmp(&0.0) {
        Some(Ordering::Greater | Ordering::Equal) => Ok(()),
        _ => Err(Error::Usage(format!("{what}, and got {bound}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::nn::Linear;
    use crate::{AcceleratorConfig, optim};

    #[test]
    fn a_state_of_one_rate_sets_it_for_all_groups() {
        let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
        let accelerator = Accelerator::over(oarlock_comm::Communicator::solo(), &config).unwrap();
        let net = Linear::new(2, 3).unwrap();
        let bias = optim::Parameters::of(&net).filter(|named| named.name == "bias");
        let optimizer = optim::adamw(&net).group(bias, |group| group.lr(0.5));
        let (_net, optimizer) = accelerator.prepare((net, optimizer)).unwrap();
        let state = &accelerator.inner.saved.parts()[0].1;
        let kept = state.state_dict().unwrap();
        assert_eq!((&kept["lr"], &kept["group_lrs"]), (&json!(1e-3), &json!([0.5])));
        // As checkpoints were before there were groups.
        let one = json!({ "lr": 0.25, "skipped": true, "loss_scale": null });
        state.load_state_dict(&one).unwrap();
        assert_eq!((optimizer.group_lrs(), optimizer.step_was_skipped()), (vec![0.25; 2], true));
        let other = json!({ "lr": 0.125, "group_lrs": [], "skipped": false, "loss_scale": null });
        let message = state.load_state_dict(&other).unwrap_err().to_string();
        assert!(message.contains("with 1 parameter groups, and this one has 2"), "{message}");
        assert_eq!(optimizer.group_lrs(), [0.25; 2]);
        state.load_state_dict(&kept).unwrap();
        assert_eq!(optimizer.group_lrs(), [1e-3, 0.5]);
    }
}
