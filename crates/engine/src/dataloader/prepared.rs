//! A loader that gives each rank its own batches.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use serde_json::Value;

use super::batches::Batches;
use super::core::Core;
use crate::{Accelerator, Error, Result, Stateful};

/// A prepared loader: Accelerate's `DataLoaderShard` and `DataLoaderDispatcher`. Cloning gives another handle.
///
/// Each rank gets batches of its own, on its device. While it gives the last one,
/// [`GradientState::end_of_dataloader`](crate::GradientState::end_of_dataloader) holds, and
/// [`GradientState::real`](crate::GradientState::real) tells how many of a batch's samples are not repeats.
pub struct PreparedLoader<B> {
    pub(super) core: Arc<Core<B>>,
    /// Batches left out at the beginning.
    skip: usize,
}

impl<B> Clone for PreparedLoader<B> {
    fn clone(&self) -> PreparedLoader<B> {
        PreparedLoader { core: self.core.clone(), skip: self.skip }
    }
}

/// The loader without the first `n` batches of an epoch, of which nothing is read (an iterable data set reads its samples,
/// and makes no batches of them). It is another handle: when it comes to its end, the loader is in the next epoch. Where
/// a state was loaded, the batches that were given before are among the `n`: a loop written for Accelerate, which skips by
/// hand after `load_state`, skips nothing twice.
pub fn skip_first_batches<B>(loader: &PreparedLoader<B>, n: usize) -> PreparedLoader<B> {
    PreparedLoader { core: loader.core.clone(), skip: loader.skip.saturating_add(n) }
}

impl Accelerator {
    /// The loader without its first `n` batches: [`skip_first_batches`].
    pub fn skip_first_batches<B>(&self, loader: &PreparedLoader<B>, n: usize) -> PreparedLoader<B> {
        skip_first_batches(loader, n)
    }

    /// Runs what belongs to the batch that `loader` gave last. Inside, `gather_for_metrics` and its kin take its rows for
    /// the batch's: for loops over several loaders side by side (`zip`), where otherwise the batch that came last counts.
    pub fn with_loader<B, R>(&self, loader: &PreparedLoader<B>, body: impl FnOnce() -> R) -> R {
        let seen = *loader.core.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let id = self.inner.window.with_loaders(|loaders| {
            let id = loaders.begin();
            loaders.give(id, seen);
            id
        });
        // Ends with the closure, whether it returns or panics.
        let _within = Within { accelerator: self, id };
        body()
    }
}

/// A batch of a loader that counts until this is dropped.
struct Within<'a> {
    accelerator: &'a Accelerator,
    id: u64,
}

impl Drop for Within<'_> {
    fn drop(&mut self) {
        self.accelerator.inner.window.with_loaders(|loaders| loaders.end(self.id));
    }
}

impl<B> PreparedLoader<B> {
    pub(super) fn of(core: Core<B>) -> PreparedLoader<B> {
        PreparedLoader { core: Arc::new(core), skip: 0 }
    }

    /// The number of batches that this rank gets in an epoch. (Of a stream that divides itself: the number that its part
    /// has; all ranks end with the shortest.)
    ///
    /// # Errors
    /// An iterable data set whose length nobody knows.
    pub fn len(&self) -> Result<usize> {
        let Core { rule, order, .. } = &*self.core;
        let n_units = order.n_units(order.position.epoch())?.ok_or_else(|| {
            Error::Usage(
                "an iterable data set has no length; count batches in the loop, or implement IterableDataset::length"
                    .to_owned(),
            )
        })?;
        Ok(rule.n_batches(n_units, 0, self.core.first_rank()).saturating_sub(self.skip))
    }

    /// Whether this rank gets no batch.
    ///
    /// # Errors
    /// As [`PreparedLoader::len`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Samples in one batch of all ranks together; `None` with a batch sampler.
    pub fn total_batch_size(&self) -> Option<usize> {
        self.core
            .has_batch_size
            .then(|| self.core.rule.round().saturating_mul(self.core.order.divided.unwrap_or(1)))
    }

    /// Samples of the data set; `None` where nobody knows.
    pub fn total_dataset_length(&self) -> Option<usize> {
        self.core.order.n_samples()
    }

    /// How many samples (with a batch sampler: batches) of the last iteration's epoch no rank got: those that
    /// `drop_last` dropped, and those of a last round that did not reach all ranks. Of an iterable data set it is known
    /// at the end.
    pub fn left_out(&self) -> usize {
        self.core.left_out.load(Relaxed)
    }

    /// Goes to an epoch, whose order comes next. Without it each full iteration goes on to the next by itself; a loop
    /// that is left early comes back to the same epoch.
    pub fn set_epoch(&self, epoch: u64) {
        self.core.order.position.set_epoch(epoch);
    }

    /// The epoch of the iteration that runs, or comes next.
    pub fn epoch(&self) -> u64 {
        self.core.order.position.epoch()
    }
}

impl<B: Send + 'static> PreparedLoader<B> {
    /// The batches of this rank, in their order. After a state was loaded, those that were not given yet.
    ///
    /// # Errors
    /// A data set that cannot be opened, workers that cannot be started. What goes wrong with a batch stands in its
    /// place, and nothing comes after it.
    pub fn iter(&self) -> Result<Batches<B>> {
        Batches::begin(self.core.clone(), self.skip)
    }
}

impl<B: Send + 'static> Stateful for PreparedLoader<B> {
    fn state_dict(&self) -> Result<Value> {
        self.core.order.state_dict()
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        self.core.order.load_state_dict(state)
    }
}
