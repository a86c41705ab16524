//! Local SGD: ranks step by themselves, and average their weights every few steps (Stich 2019).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::held::Held;
use super::{Accelerator, Prepared};
use crate::error::{Error, Result};
use crate::nn::Module;

/// How [`Accelerator::local_sgd`] runs. The fields are those of Accelerate's `LocalSGD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSgd {
    /// Steps that each rank does by itself between two averages.
    pub local_sgd_steps: usize,
    /// Whether ranks step by themselves at all; if not, the loop runs as everywhere.
    pub enabled: bool,
}

impl Default for LocalSgd {
    /// Eight steps, as in Accelerate's example.
    fn default() -> LocalSgd {
        LocalSgd { local_sgd_steps: 8, enabled: true }
    }
}

/// Counts the steps inside of [`Accelerator::local_sgd`].
pub struct LocalSteps {
    held: Arc<Held>,
    config: LocalSgd,
    n_steps: usize,
}

impl LocalSteps {
    /// Counts a step; every so many of them the weights become their mean over the ranks. To be called after each
    /// `optimizer.step()` that is one, as often on each rank.
    ///
    /// # Errors
    /// When a rank failed, or has done another number of steps.
    pub fn step(&mut self) -> Result<()> {
        self.n_steps += 1;
        if self.config.enabled && self.n_steps.is_multiple_of(self.config.local_sgd_steps) {
            self.held.optimizer()?.engine_mut().average(false)?;
        }
        Ok(())
    }
}

impl Accelerator {
    /// Runs a loop in which each rank steps on its own gradients; the weights become their mean over the ranks every
    /// `local_sgd_steps` steps and at the end. The optimizer's states stay each rank's own until the end, where they
    /// become their mean too, so that all ranks are equal again whatever comes next. (Accelerate leaves them different,
    /// and with them all later steps.)
    ///
    /// Each rank must have the whole state (`Placements::WHOLE`). Nothing is saved inside of it, where weights differ.
    ///
    /// # Errors
    /// Another placement, a model without an optimizer, 16-bit training with a loss scale (each rank's would follow its
    /// own overflows), no steps at all; what `body` reports; a failed rank.
    pub fn local_sgd<M: Module, R>(
        &self,
        model: &Prepared<M>,
        config: LocalSgd,
        body: impl FnOnce(&mut LocalSteps) -> Result<R>,
    ) -> Result<R> {
        let held = model.held.clone();
        let wrong = |what: &str| Err(Error::Usage(format!("local_sgd: {} {what}", held.name)));
        if config.local_sgd_steps == 0 {
            return wrong(
                "averages its weights every `local_sgd_steps` steps, of which there must be at least one",
            );
        }
        if !held.is_trained {
            return wrong("has no optimizer, and nothing of it is trained");
        }
        if config.enabled {
            if held.local.load(Relaxed) {
                return wrong("is in a `local_sgd` already");
            }
            let mut optimizer = held.optimizer()?;
            if optimizer.loss_scale_state().is_some() {
                return wrong("is trained with a loss scale, which the ranks share; train it in bf16 or f32");
            }
            optimizer.engine_mut().set_local(true)?;
            held.local.store(true, Relaxed);
        }
        let mut steps = LocalSteps { held: held.clone(), config, n_steps: 0 };
        let result = body(&mut steps);
        if config.enabled {
            held.local.store(false, Relaxed);
            let mut optimizer = held.optimizer()?;
            optimizer.engine_mut().set_local(false)?;
            if result.is_ok() {
                optimizer.engine_mut().average(true)?;
            }
        }
        result
    }
}
