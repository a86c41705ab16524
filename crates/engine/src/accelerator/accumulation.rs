//! Gradient accumulation: which micro-batch ends a window, and with it a step.

use std::sync::atomic::Ordering::Relaxed;

use super::gradient_state::GradientState;
use super::handle::Accelerator;
use super::optimizer::PreparedOptimizer;
use crate::Result;

impl Accelerator {
    /// Runs one micro-batch of a window. In the last one of the window, or of the loader, optimizers step; in the
    /// others `step`, `zero_grad` and schedules do nothing. The step takes the mean over the micro-batches; a loss is
    /// never divided by hand. Losses of one micro-batch add up.
    ///
    /// # Errors
    /// What `body` reports.
    pub fn accumulate<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        {
            let accumulation = self.inner.accumulation();
            let mut gradients = self.inner.gradients();
            if accumulation.sync_with_dataloader && gradients.end_of_dataloader {
                (gradients.step, gradients.sync_gradients) = (0, true);
            } else {
                gradients.step += 1;
                gradients.sync_gradients = gradients.step.is_multiple_of(accumulation.num_steps.max(1));
            }
        }
        self.in_micro_batch(self.inner.n_micro_batches.fetch_add(1, Relaxed) + 1, body)
    }

    /// Begins the accumulation window of the coming step with what all its losses weigh on this rank, such as the number of
    /// targets of all its micro-batches, and returns what they weigh over all ranks. The window takes losses that are sums.
    /// Each is divided by the whole weight before its backward pass, so that every target weighs the same on whatever rank
    /// and in whatever micro-batch it is, and nothing is divided later; a loss of [`Prepared::loss`](super::Prepared::loss)
    /// makes its first gradient in the forward pass. The window ends with the step. All ranks call it.
    ///
    /// Without it the step divides by what the losses weighed, when it is known.
    ///
    /// # Errors
    /// A window that has begun with a backward pass, a weight of 0 over all ranks, a failed rank.
    #[track_caller]
    pub fn accumulation_window(&self, optimizer: &PreparedOptimizer, weight: f64) -> Result<f64> {
        optimizer.state.declare(self.inner.data(), weight)
    }

    /// Runs what belongs to one micro-batch, whose number is not 0.
    pub(crate) fn in_micro_batch<R>(&self, number: u64, body: impl FnOnce() -> R) -> R {
        let around = self.inner.micro_batch.swap(number, Relaxed);
        let result = body();
        self.inner.micro_batch.store(around, Relaxed);
        result
    }

    /// Runs micro-batches of which none ends the window.
    ///
    /// # Errors
    /// What `body` reports.
    pub fn no_sync<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        let before = std::mem::replace(&mut self.inner.gradients().sync_gradients, false);
        let result = body();
        self.inner.gradients().sync_gradients = before;
        result
    }

    /// Whether the coming `step` is one.
    pub fn sync_gradients(&self) -> bool {
        self.inner.gradients().sync_gradients
    }

    /// Where the loop stands in its window.
    pub fn gradient_state(&self) -> GradientState {
        *self.inner.gradients()
    }
}
