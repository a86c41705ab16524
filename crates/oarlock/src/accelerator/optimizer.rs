//! The optimizer of a prepared model: it steps when the window of micro-batches is complete, and does nothing before.

use std::cmp::Ordering;
use std::sync::Arc;

use super::Inner;
use super::held::Held;
use crate::error::{Error, Result};
use crate::optim::Pace;
use crate::train::Stepped;

/// A prepared optimizer. Cloning gives another handle.
#[derive(Clone)]
pub struct PreparedOptimizer {
    pub(crate) held: Arc<Held>,
    pub(crate) pace: Pace,
    inner: Arc<Inner>,
}

impl PreparedOptimizer {
    pub(super) fn new(held: Arc<Held>, pace: Pace, inner: Arc<Inner>) -> PreparedOptimizer {
        PreparedOptimizer { held, pace, inner }
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
        self.held.close(&self.inner.comm, &self.inner.accumulation())?;
        self.held.clip()?;
        let lrs = self.pace.lrs();
        let stepped = self.held.optimizer()?.step_at(|group| lrs.get(group).copied().unwrap_or_default())?;
        match stepped {
            Stepped::Done => self.held.update(),
            // The weights are what they were.
            _ => self.held.begin(),
        }
        self.pace.set_skipped(stepped != Stepped::Done);
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
        if self.inner.gradients().sync_gradients && !(accumulates && self.held.is_deepspeed()) {
            self.held.optimizer()?.clear_grads()?;
            self.held.begin();
        }
        Ok(())
    }

    /// The learning rate of the next step, of group 0.
    pub fn lr(&self) -> f64 {
        self.pace.lr()
    }

    /// The learning rates of the next step, of all groups.
    pub fn group_lrs(&self) -> Vec<f64> {
        self.pace.lrs()
    }

    /// Sets the learning rate of the next step, for all groups.
    pub fn set_lr(&self, lr: f64) {
        self.pace.set_lrs(|_, _| lr);
    }

    /// Sets the learning rate of the next step for one group.
    ///
    /// # Errors
    /// A group that the optimizer does not have.
    pub fn set_group_lr(&self, group: usize, lr: f64) -> Result<()> {
        self.pace.set_group_lr(group, lr).ok_or_else(|| {
            Error::Usage(format!(
                "set_group_lr: there is no group {group}; the optimizer of {} has {}, counted from 0",
                self.held.name,
                self.pace.lrs().len()
            ))
        })
    }

    /// The factor of the coming loss in its backward pass: 1 but in f16. All optimizers of an accelerator have one scale,
    /// as with torch's `GradScaler`, and each step moves it; gradients that wait for their step keep that which they had.
    ///
    /// # Errors
    /// Before its model is prepared.
    pub fn loss_scale(&self) -> Result<f64> {
        Ok(self.held.optimizer()?.loss_scale())
    }

    /// Whether the last step was skipped because gradients overflowed.
    pub fn step_was_skipped(&self) -> bool {
        self.pace.skipped()
    }

    /// The steps done; those that were skipped do not count.
    ///
    /// # Errors
    /// Before its model is prepared.
    pub fn n_steps(&self) -> Result<u64> {
        Ok(self.held.optimizer()?.n_steps())
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
        self.held.close(&self.inner.comm, &self.inner.accumulation())?;
        self.held.optimizer()?.clip_grad_norm(max_norm).map(Some)
    }

    /// Cuts the elements of the averaged gradients off at `value`; whether there is a step that they are for.
    #[track_caller]
    pub(super) fn clip_grad_value(&self, value: f32) -> Result<bool> {
        check_bound("clip_grad_value: elements are cut off at 0 or more", f64::from(value))?;
        if !self.inner.gradients().sync_gradients {
            return Ok(false);
        }
        self.held.close(&self.inner.comm, &self.inner.accumulation())?;
        self.held.optimizer()?.clip_grad_value(value)?;
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
