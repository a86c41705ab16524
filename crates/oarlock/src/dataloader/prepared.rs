//! A loader that gives each rank its own batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use serde_json::{Value, json};

use super::batches::Batches;
use super::collate::Collator;
use super::plan::{Rule, Source};
use super::position::Position;
use super::{DataLoader, Division, Replica};
use crate::error::{Error, Result};
use crate::nested::{Nested, Parcel};
use crate::{Accelerator, Ends, Plan, Prepare, Stateful};

/// What iterates: everything that a loader and its division have settled.
pub(super) struct Core<B> {
    pub source: Arc<dyn Source<B>>,
    pub rule: Rule,
    pub rank: usize,
    /// Whose samples the sampler gives, where it divides the data set itself.
    pub replica: Option<Replica>,
    pub has_batch_size: bool,
    /// Of shuffled orders.
    pub seed: Option<u64>,
    pub num_workers: usize,
    pub depth: usize,
    pub position: Arc<Position>,
    /// Units of the last epoch that no rank got.
    pub left_out: Arc<AtomicUsize>,
    /// Whether that was told.
    pub told: AtomicBool,
    /// None for a loader that was not prepared.
    pub accelerator: Option<Accelerator>,
    /// Where rank 0 reads for all.
    pub codec: Option<Codec<B>>,
}

impl<B> Core<B> {
    pub fn left_out(&self) -> usize {
        self.left_out.load(Relaxed)
    }

    pub fn set_left_out(&self, n: usize) {
        self.left_out.store(n, Relaxed);
    }

    /// Tells once, on rank 0, what no rank gets though nobody asked to drop it, or that there is no batch at all.
    pub fn tell_left_out(&self, is_empty: bool) {
        let n = self.left_out();
        if n == 0 || self.rank != 0 || (self.rule.drop_last && !is_empty) || self.told.swap(true, Relaxed) {
            return;
        }
        let why =
            if self.rule.drop_last { "drop_last" } else { "no even_batches, and too few for every rank" };
        eprintln!("the data loader leaves {n} samples out of each epoch ({why})");
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

/// The loader without its first `n` batches, of which nothing is read (an iterable data set reads its samples, and makes
/// no batches of them). It is another handle: when it comes to its end, the loader is in the next epoch.
pub fn skip_first_batches<B>(loader: &PreparedLoader<B>, n: usize) -> PreparedLoader<B> {
    PreparedLoader { core: loader.core.clone(), skip: loader.skip.saturating_add(n) }
}

impl Accelerator {
    /// The loader without its first `n` batches: [`skip_first_batches`].
    pub fn skip_first_batches<B>(&self, loader: &PreparedLoader<B>, n: usize) -> PreparedLoader<B> {
        skip_first_batches(loader, n)
    }
}

impl<B> PreparedLoader<B> {
    pub(super) fn of(core: Core<B>) -> PreparedLoader<B> {
        PreparedLoader { core: Arc::new(core), skip: 0 }
    }

    /// The number of batches that this rank gets in an epoch.
    ///
    /// # Errors
    /// An iterable data set whose length nobody knows.
    pub fn len(&self) -> Result<usize> {
        let Core { source, rule, rank, position, .. } = &*self.core;
        let n_units = source.n_units(position.epoch())?.ok_or_else(|| {
            Error::Usage(
                "an iterable data set has no length; count batches in the loop, or implement IterableDataset::len"
                    .to_owned(),
            )
        })?;
        Ok(rule.n_batches(n_units, 0, *rank).saturating_sub(self.skip))
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
        self.core.has_batch_size.then(|| self.core.rule.round() * self.core.replica.map_or(1, |of| of.world))
    }

    /// Samples of the data set; `None` where nobody knows.
    pub fn total_dataset_length(&self) -> Option<usize> {
        self.core.source.n_samples()
    }

    /// How many samples (with a batch sampler: batches) of the last iteration's epoch no rank got: those that
    /// `drop_last` dropped, and those of a last round that did not reach all ranks. Of an iterable data set it is known
    /// at the end.
    pub fn left_out(&self) -> usize {
        self.core.left_out()
    }

    /// Goes to an epoch, whose order comes next. Without it each full iteration goes on to the next by itself; a loop
    /// that is left early comes back to the same epoch.
    pub fn set_epoch(&self, epoch: u64) {
        self.core.position.set_epoch(epoch);
    }

    /// The epoch of the iteration that runs, or comes next.
    pub fn epoch(&self) -> u64 {
        self.core.position.epoch()
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
                true => plan.accelerator.num_processes(),
                false => 1,
            };
            plan.add_batch_size(batch_size.div_ceil(ranks));
        }
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<PreparedLoader<C::Batch>> {
        let accelerator = &plan.accelerator;
        let config = &accelerator.inner.config.dataloader;
        let (rank, world) = (accelerator.process_index(), accelerator.num_processes());
        let mut division = Division {
            rank,
            world,
            split: config.split_batches,
            // A rank alone waits for nobody.
            even: config.even_batches && world > 1,
            together: config.ends == Ends::Together,
        };
        if let Some(replica) = self.replica() {
            if (replica.rank, replica.world) != (rank, world) {
                return Err(Error::Usage(format!(
                    "data loader: its sampler gives the samples of rank {} of {}, and this is rank {rank} of {world}; \
                     leave the sampler away, since `prepare` divides the data set among the ranks by itself",
                    replica.rank, replica.world
                )));
            }
            self.rule(division)?;
            let batch = self.settings.batch_size;
            division = Division::NONE;
            if config.split_batches
                && let Some(batch) = batch
            {
                return Err(Error::Usage(format!(
                    "data loader: split_batches divides a batch of {batch} samples among {world} ranks, and its sampler \
                     gives those of one rank; leave the sampler away, or split_batches"
                )));
            }
        }
        let dispatches =
            config.dispatch_batches.unwrap_or(self.is_stream()) && world > 1 && self.replica().is_none();
        let seed = config.data_seed.unwrap_or(accelerator.seed());
        let mut core = self.core(division, accelerator.device().clone(), seed)?;
        core.accelerator = Some(accelerator.clone());
        if dispatches {
            // Each rank takes part in sending, so all end together.
            core.rule.together = true;
            core.codec = Some(Codec { pack: C::Batch::pack, unpack: C::Batch::unpack });
        } else if let Some(n) = core.source.n_samples() {
            accelerator.communicator().agree("the number of samples of a data set", n as u64)?;
        }
        let prepared = PreparedLoader::of(core);
        accelerator.inner.add_stateful("dataloader", Arc::new(prepared.clone()));
        Ok(prepared)
    }
}

/// Epoch and position, counted in samples: a run on another number of ranks, or with another batch size, goes on at the
/// sample after the last one that was given.
impl<B: Send + 'static> Stateful for PreparedLoader<B> {
    fn state_dict(&self) -> Result<Value> {
        let Core { source, replica, seed, position, .. } = &*self.core;
        let place = position.get();
        Ok(json!({
            "epoch": place.epoch,
            "given": place.given,
            "of": source.n_units(place.epoch)?,
            "seed": seed,
            "ranks": replica.map(|of| of.world),
        }))
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        let Core { source, replica, seed, position, .. } = &*self.core;
        let refused =
            |why: String| Err(Error::Usage(format!("the data loader cannot go on from {state}: {why}")));
        let number = |key: &str| state.get(key).and_then(Value::as_u64);
        let (Some(epoch), Some(given)) = (number("epoch"), number("given")) else {
            return refused("it is no state of a data loader".to_owned());
        };
        let n_units = source.n_units(epoch)?;
        let known = |n: Option<u64>, none: &str| n.map_or(none.to_owned(), |n| n.to_string());
        for (key, ours, what) in [
            ("of", n_units.map(|n| n as u64), "its epochs have {} samples, and this loader's {}"),
            ("seed", *seed, "it was shuffled with the seed {}, and this loader is with {}"),
            (
                "ranks",
                replica.map(|of| of.world as u64),
                "its sampler was for {} ranks, and this loader's is for {}",
            ),
        ] {
            if number(key) != ours {
                let told = what.replacen("{}", &known(number(key), "no"), 1);
                return refused(told.replacen("{}", &known(ours, "no"), 1));
            }
        }
        let given = usize::try_from(given).unwrap_or(usize::MAX);
        if n_units.is_some_and(|n| given > n) {
            return refused("it gave more samples than there are".to_owned());
        }
        position.resume(epoch, given);
        Ok(())
    }
}
