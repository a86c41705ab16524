//! Gradient accumulation: which micro-batch ends a window, and with it a step.

use super::gradient_state::GradientState;
use super::optimizer::PreparedOptimizer;
use crate::Result;
use crate::accelerator::handle::Accelerator;

impl Accelerator {
    /// Runs one micro-batch of a window. In the last one of the window, or of the loader, optimizers step; in the
    /// others `step`, `zero_grad` and schedules do nothing. The step takes the mean over the micro-batches; a loss is
    /// never divided by hand. Losses of one micro-batch add up.
    ///
    /// # Errors
    /// What `body` reports.
    pub fn accumulate<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        let accumulation = self.inner.accumulation();
        self.inner.window.with_gradients(|gradients| {
            if accumulation.sync_with_dataloader && gradients.end_of_dataloader {
                (gradients.step, gradients.sync_gradients) = (0, true);
            } else {
                gradients.step += 1;
                gradients.sync_gradients = gradients.step.is_multiple_of(accumulation.num_steps.max(1));
            }
        });
        self.in_micro_batch(self.inner.window.next_micro_batch(), body)
    }

    /// Begins the accumulation window of the coming step with what all its losses weigh on this rank, such as the number of
    /// targets of all its micro-batches, and returns what they weigh over all ranks. The window takes losses that are sums.
    /// Each is divided by the whole weight before its backward pass, so that every target weighs the same on whatever rank
    /// and in whatever micro-batch it is, and nothing is divided later; a loss of [`Prepared::loss`](crate::Prepared::loss)
    /// makes its first gradient in the forward pass. The window ends with the step. All ranks call it.
    ///
    /// Without it the step divides by what the losses weighed, when it is known.
    ///
    /// # Errors
    /// A window that has begun with a backward pass, a weight of 0 over all ranks, a failed rank.
    #[track_caller]
    pub fn accumulation_window(&self, optimizer: &PreparedOptimizer, weight: f64) -> Result<f64> {
        optimizer.state.declare(self.data_ranks(), weight)
    }

    /// Runs what belongs to one micro-batch, whose number is not 0.
    pub(crate) fn in_micro_batch<R>(&self, number: u64, body: impl FnOnce() -> R) -> R {
        let around = self.inner.window.enter_micro_batch(number);
        let result = body();
        self.inner.window.enter_micro_batch(around);
        result
    }

    /// Runs micro-batches of which none ends the window.
    ///
    /// # Errors
    /// What `body` reports.
    pub fn no_sync<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        let sync = |sync| {
            self.inner
                .window
                .with_gradients(|gradients| std::mem::replace(&mut gradients.sync_gradients, sync))
        };
        let before = sync(false);
        let result = body();
        sync(before);
        result
    }

    /// Whether the coming `step` is one.
    pub fn sync_gradients(&self) -> bool {
        self.gradient_state().sync_gradients
    }

    /// Where the loop stands in its window.
    pub fn gradient_state(&self) -> GradientState {
        self.inner.window.gradients()
    }
}
