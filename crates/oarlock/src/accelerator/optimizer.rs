//! The optimizer of a prepared model: it steps when the window of micro-batches is complete, and does nothing before.

use std::cmp::Ordering;
use std::sync::Arc;

use oarlock_tensor::ops::optimizer::Rule;

use super::Inner;
use super::prepared_state::PreparedState;
use crate::error::{Error, Result};
use crate::optim::LrState;
use crate::optim::Stepped;
use crate::shard::Engine;

/// A prepared optimizer. Cloning gives another handle.
#[derive(Clone)]
pub struct PreparedOptimizer {
    pub(crate) state: Arc<PreparedState>,
    pub(crate) lr_state: LrState,
    inner: Arc<Inner>,
}

impl PreparedOptimizer {
    pub(super) fn new(state: Arc<PreparedState>, lr_state: LrState, inner: Arc<Inner>) -> PreparedOptimizer {
        PreparedOptimizer { state, lr_state, inner }
    }

    /// One step with the gradients of the window, averaged over its micro-batches and all ranks; the gradients are
    /// forgotten afterwards. While they accumulate it does nothing, and says `None`. All ranks call it.
    ///
    /// # Errors
    /// A window without any backward pass, a failed rank, 16-bit gradients that overflow at the least loss scale.
    /// Otherwise gradients that are not finite go into the weights, as in torch; [`Accelerator::clip_grad_norm`] reports
    /// them.
    ///
    /// [`Accelerator::clip_grad_norm`]: crate::Accelerator::clip_grad_norm
    #[track_caller]
    pub fn step(&self) -> Result<Option<Stepped>> {
        if !self.inner.gradients().sync_gradients {
            return Ok(None);
        }
        self.state.close(&self.inner.comm, &self.inner.accumulation())?;
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

    /// Forgets the gradients that have come together, where [`PreparedOptimizer::step`] would step; while they accumulate
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
        if self.inner.gradients().sync_gradients && !(accumulates && self.state.options.keeps_partial_windows)
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
        let rule = *self.state.optimizer()?.rule();
        Ok(self.lr_state.betas().map_or(rule, |betas| rule.with_betas(betas)))
    }

    /// Sums the gradients of the window over all ranks, which clipping and the step do first otherwise: for loops that
    /// time it. While gradients accumulate it does nothing. All ranks call it.
    ///
    /// # Errors
    /// A window without any backward pass, a failed rank.
    #[track_caller]
    pub fn reduce_gradients(&self) -> Result<()> {
        if self.inner.gradients().sync_gradients {
            self.state.close(&self.inner.comm, &self.inner.accumulation())?;
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

    /// Looks at the engine that holds the model: where its state lies, and what it takes of memory.
    ///
    /// # Errors
    /// Before its model is prepared.
    pub fn with_engine<R>(&self, look: impl FnOnce(&Engine) -> R) -> Result<R> {
        Ok(look(self.state.optimizer()?.engine()))
    }

    /// Scales the gradients of the window down so that their global L2 norm is at most `max_norm` (0: never), and
    /// returns the norm before that; `None` while gradients accumulate.
    #[track_caller]
    pub(super) fn clip_grad_norm(&self, max_norm: f64) -> Result<Option<f64>> {
        check_bound(
            "clip_grad_norm: gradients are scaled down to a norm of more than 0, or with 0 not at all",
            max_norm,
        )?;
        if !self.inner.gradients().sync_gradients {
            return Ok(None);
        }
        self.state.close(&self.inner.comm, &self.inner.accumulation())?;
        self.state.optimizer()?.clip_grad_norm(max_norm).map(Some)
    }

    /// Cuts the elements of the averaged gradients off at `value`; whether there is a step that they are for.
    #[track_caller]
    pub(super) fn clip_grad_value(&self, value: f32) -> Result<bool> {
        check_bound("clip_grad_value: elements are cut off at 0 or more", f64::from(value))?;
        if !self.inner.gradients().sync_gradients {
            return Ok(false);
        }
        self.state.close(&self.inner.comm, &self.inner.accumulation())?;
        self.state.optimizer()?.clip_grad_value(value)?;
        Ok(true)
    }
}

/// Refuses a bound below 0, or NaN.
fn check_bound(what: &str, bound: f64) -> Result<()> {
    match bound.partial_cmp(&0.0) {
        Some(Ordering::Greater | Ordering::Equal) => Ok(()),
        _ => Err(Error::Usage(format!("{what}, and got {bound}"))),
    }
}
