//! Where a loop stands: in its window of micro-batches, in the loaders that run, and in the micro-batch of a pass.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::gradient_state::GradientState;
use super::loaders::{LastBatch, Loaders};

/// The place of a loop, which its accelerator and all that it prepared look at.
#[derive(Default)]
pub(crate) struct Window(Mutex<Place>);

#[derive(Default)]
struct Place {
    /// The micro-batches of a step that a DeepSpeed configuration asks for; 0: what the accelerator was told.
    num_steps: usize,
    gradients: GradientState,
    loaders: Loaders,
    /// The micro-batch that runs; 0 outside of any.
    micro_batch: u64,
    n_micro_batches: u64,
}

impl Window {
    /// Locked for a moment only.
    fn place(&self) -> MutexGuard<'_, Place> {
        // Numbers and lists of them, whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the loop stands in its window.
    pub fn gradients(&self) -> GradientState {
        self.place().gradients
    }

    /// Changes where the loop stands.
    pub fn with_gradients<R>(&self, change: impl FnOnce(&mut GradientState) -> R) -> R {
        change(&mut self.place().gradients)
    }

    /// Notes what a loader does, and what the loop knows of its batch then.
    pub fn with_loaders<R>(&self, note: impl FnOnce(&mut Loaders) -> R) -> R {
        let mut place = self.place();
        let result = note(&mut place.loaders);
        let LastBatch { is_last, rows, real } = place.loaders.last_batch();
        let gradients = &mut place.gradients;
        (gradients.end_of_dataloader, gradients.rows, gradients.real) = (is_last, rows, real);
        result
    }

    /// The micro-batches of a step, where a DeepSpeed configuration asks for a number.
    pub fn num_steps(&self) -> Option<usize> {
        Some(self.place().num_steps).filter(|num_steps| *num_steps > 0)
    }

    /// Makes a step of so many micro-batches.
    pub fn set_num_steps(&self, num_steps: usize) {
        self.place().num_steps = num_steps;
    }

    /// The micro-batch that runs; 0 outside of any.
    pub fn micro_batch(&self) -> u64 {
        self.place().micro_batch
    }

    /// Enters a micro-batch: the one around it.
    pub fn enter_micro_batch(&self, number: u64) -> u64 {
        std::mem::replace(&mut self.place().micro_batch, number)
    }

    /// The number of a micro-batch that begins, from 1.
    pub fn next_micro_batch(&self) -> u64 {
        let mut place = self.place();
        place.n_micro_batches += 1;
        place.n_micro_batches
    }
}
