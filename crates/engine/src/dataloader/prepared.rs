//! A loader that gives each rank its own batches.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_comm::Communicator;

use super::batches::Batches;
use super::collate::Collator;
use super::dataset::Data;
use super::plan::Rule;
use super::state::LoaderState;
use super::{DataLoader, Division, Replica};
use crate::accelerator::loaders::LastBatch;
use crate::nn::nested::{Nested, Parcel};
use crate::{Accelerator, Ends, Plan, Prepare};
use crate::{Error, Result};

/// What iterates: everything that a loader and its division have settled.
pub(super) struct Core<B> {
    pub order: LoaderState<B>,
    pub rule: Rule,
    pub rank: usize,
    /// Whose samples the sampler gives, where it divides the data set itself.
    pub replica: Option<Replica>,
    pub has_batch_size: bool,
    pub num_workers: usize,
    pub depth: usize,
    /// Units of the last epoch that no rank got.
    pub left_out: Arc<AtomicUsize>,
    /// Whether that was reported.
    pub warned: AtomicBool,
    /// What is to be known of the batch that was given last.
    pub seen: Mutex<LastBatch>,
    /// None for a loader that was not prepared.
    pub accelerator: Option<Accelerator>,
    /// Where rank 0 reads for all.
    pub codec: Option<Codec<B>>,
}

impl<B> Core<B> {
    pub fn set_last_batch(&self, seen: LastBatch) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// Tells once, on rank 0, what no rank gets though nobody asked to drop it, or that there is no batch at all.
    pub fn warn_left_out(&self, is_empty: bool) {
        let n = self.left_out.load(Relaxed);
        if n == 0 || self.rank != 0 || (self.rule.drop_last && !is_empty) || self.warned.swap(true, Relaxed) {
            return;
        }
        let why =
            if self.rule.drop_last { "drop_last" } else { "no even_batches, and too few for every rank" };
        eprintln!("the data loader leaves {n} samples out of each epoch ({why})");
    }

    /// This rank, as the rule counts it.
    pub fn first_rank(&self) -> usize {
        if self.order.divided.is_some() { 0 } else { self.rank }
    }

    /// The ranks that agree batch by batch whether all have another: those of a stream that divides itself.
    pub fn together(&self) -> Option<Communicator> {
        let agrees = self.order.divided.is_some() && self.replica.is_none() && self.rule.together;
        self.accelerator.as_ref().filter(|_| agrees).map(|accelerator| accelerator.data_ranks().clone())
    }

    /// How many samples of a batch are real, after `given` units were given with it.
    pub fn real(&self, given: usize, real: Option<usize>) -> Option<usize> {
        let Some(Replica { n, n_real, .. }) = self.replica else { return real };
        let begin = given.saturating_sub(self.rule.batch_size);
        let (size, own) = (n.min(given).saturating_sub(begin), n_real.min(given).saturating_sub(begin));
        (own < size).then_some(own)
    }
}

/// How a batch travels.
pub(super) struct Codec<B> {
    pub pack: fn(&B, &mut Parcel) -> Result<()>,
    pub unpack: fn(&mut Parcel) -> Result<B>,
}

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
        let id = self.inner.with_loaders(|loaders| {
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
        self.accelerator.inner.with_loaders(|loaders| loaders.end(self.id));
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

impl<I, C> Prepare for DataLoader<I, C>
where
    I: Send + 'static,
    C: Collator<I>,
    C::Batch: Nested,
{
    type Prepared = PreparedLoader<C::Batch>;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        self.order()?;
        if let Some(batch_size) = self.settings.batch_size {
            let ranks = match plan.accelerator.inner.config.dataloader.split_batches {
                true => plan.accelerator.data_ranks().world_size(),
                false => 1,
            };
            plan.add_batch_size(batch_size.div_ceil(ranks));
        }
        Ok(())
    }

    fn finish(mut self, plan: &Plan) -> Result<PreparedLoader<C::Batch>> {
        let accelerator = &plan.accelerator;
        let config = &accelerator.inner.config.dataloader;
        let (rank, world) = (accelerator.data_ranks().rank(), accelerator.data_ranks().world_size());
        let division = Division {
            rank,
            world,
            split: config.split_batches,
            // A rank alone waits for nobody.
            even: config.even_batches && world > 1,
            together: config.ends == Ends::Together,
        };
        let is_divided = self.is_divided(division, config.dispatch_batches == Some(true))?;
        let dispatches = config.dispatch_batches.unwrap_or(self.is_stream()) && world > 1 && !is_divided;
        let seed = config.data_seed.unwrap_or(accelerator.seed());
        let rule =
            if is_divided { Division { together: division.together, ..Division::NONE } } else { division };
        let mut core = self.core(rule, accelerator.device().clone(), seed)?;
        (core.rank, core.order.divided) = (rank, is_divided.then_some(world));
        core.accelerator = Some(accelerator.clone());
        if dispatches {
            // Each rank takes part in sending, so all end together.
            core.rule.together = true;
            core.codec = Some(Codec { pack: C::Batch::pack, unpack: C::Batch::unpack });
            let mut parcel = Parcel::new(accelerator.device());
            core.order.n_samples().pack(&mut parcel)?;
            let n = accelerator.data_ranks().broadcast_bytes(0, parcel.bytes())?;
            if self.settings.sampler.is_none() && self.settings.batch_sampler.is_none() {
                core.order.n_at_root = Option::unpack(&mut Parcel::open(n, accelerator.device()))?;
            }
        } else if let Some(n) = core.order.n_samples()
            && core.together().is_none()
        {
            accelerator.data_ranks().agree("the number of samples of a data set", n as u64)?;
        }
        // Not the loader itself: it holds the accelerator.
        accelerator.inner.add_stateful("dataloader", Arc::new(core.order.clone()));
        Ok(PreparedLoader::of(core))
    }
}

impl<I: Send + 'static, C> DataLoader<I, C> {
    /// Whether the samples are those of this rank already: the sampler's, or those of a stream that divides itself,
    /// which it does here.
    fn is_divided(&mut self, division: Division, dispatches: bool) -> Result<bool> {
        let Division { rank, world, split, .. } = division;
        if let Some(replica) = self.replica() {
            if (replica.rank, replica.world) != (rank, world) {
                return Err(Error::Usage(format!(
                    "data loader: its sampler gives the samples of rank {} of {}, and this is rank {rank} of {world}; \
                     leave the sampler away, since `prepare` divides the data set among the ranks by itself",
                    replica.rank, replica.world
                )));
            }
            if split {
                return Err(Error::Usage(format!(
                    "data loader: split_batches divides each batch among {world} ranks, and its sampler gives the samples \
                     of one; leave the sampler away, or split_batches"
                )));
            }
            return Ok(true);
        }
        let shard = match &self.data {
            Data::Stream(dataset) if world > 1 && !split && !dispatches => dataset.shard(rank, world),
            _ => None,
        };
        let is_divided = shard.is_some();
        if let Some(shard) = shard {
            self.data = Data::Stream(shard);
        }
        Ok(is_divided)
    }
}
