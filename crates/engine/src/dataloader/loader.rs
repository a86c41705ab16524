//! The data loader before it is prepared.

use super::batches::Batches;
use super::collate::{Collator, Stack};
use super::dataset::{Dataset, IterableDataset};
use super::prepared::{PreparedLoader, skip_first_batches};
use super::sampler::{BatchSampler, Replica, Sampler};
use super::shards::BatchSamplerShard;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par};

use super::core::Core;
use super::dataset::Data;
use super::plan::{Rule, Samples, Source};
use super::position::Position;
use super::sampler::Order;
use super::state::LoaderState;
use crate::{Error, Result};

/// A loader: torch's `DataLoader`. It works as it stands, giving all batches to whoever iterates, and it can be prepared.
///
/// What is wrong with its settings is reported when it is prepared or iterated over.
pub struct DataLoader<I, C = Stack> {
    pub(super) data: Data<I>,
    collate: Arc<C>,
    pub(super) settings: Settings,
    position: Arc<Position>,
}

#[derive(Clone)]
pub(super) struct Settings {
    /// With a batch sampler none.
    pub batch_size: Option<usize>,
    shuffle: bool,
    pub sampler: Option<Arc<dyn Sampler>>,
    pub batch_sampler: Option<Arc<dyn BatchSampler>>,
    drop_last: bool,
    seed: Option<u64>,
    num_workers: usize,
    prefetch_factor: usize,
    device: Option<Device>,
}

/// How a loader is divided.
#[derive(Clone, Copy)]
pub(super) struct Division {
    pub rank: usize,
    pub world: usize,
    pub split: bool,
    pub even: bool,
    pub together: bool,
}

impl Division {
    /// All to one.
    pub const NONE: Division = Division { rank: 0, world: 1, split: false, even: false, together: true };
}

/// The seed of shuffled orders where none is given.
const SEED: u64 = 42;

impl<I: Send + 'static> DataLoader<I> {
    /// A loader of a data set, in batches of `batch_size` samples, stacked into tensors.
    pub fn new(dataset: impl Dataset<Item = I>, batch_size: usize) -> DataLoader<I> {
        DataLoader::over(Data::Map(Arc::new(dataset)), batch_size)
    }

    /// A loader of a data set that can only be iterated over.
    pub fn iterable(dataset: impl IterableDataset<Item = I>, batch_size: usize) -> DataLoader<I> {
        DataLoader::over(Data::Stream(Arc::new(dataset)), batch_size)
    }

    fn over(data: Data<I>, batch_size: usize) -> DataLoader<I> {
        let settings = Settings {
            batch_size: Some(batch_size),
            shuffle: false,
            sampler: None,
            batch_sampler: None,
            drop_last: false,
            seed: None,
            num_workers: 0,
            prefetch_factor: 2,
            device: None,
        };
        DataLoader { data, collate: Arc::new(Stack), settings, position: Arc::default() }
    }
}

impl<I: Send + 'static, C> DataLoader<I, C> {
    /// Another way to make batches: the samples of a batch, and the device on which it is wanted.
    pub fn collate<B, F>(self, f: F) -> DataLoader<I, F>
    where
        B: Send + 'static,
        F: Fn(Vec<I>, &Device) -> Result<B> + Send + Sync + 'static,
    {
        let DataLoader { data, settings, position, .. } = self;
        DataLoader { data, collate: Arc::new(f), settings, position }
    }

    /// Draws a new order in every epoch: torch's permutation of the generator seeded with seed + epoch, the same on
    /// every rank.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.settings.shuffle = shuffle;
        self
    }

    /// The seed of shuffled orders; by default that of the accelerator.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = Some(seed);
        self
    }

    /// Takes the samples in the order of a sampler, such as [`DistributedSampler`](crate::dataloader::DistributedSampler).
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.settings.sampler = Some(Arc::new(sampler));
        self
    }

    /// Takes the batches of a batch sampler, in place of the batch size.
    pub fn batch_sampler(mut self, sampler: impl BatchSampler) -> Self {
        self.settings.batch_sampler = Some(Arc::new(sampler));
        self
    }

    /// Leaves out the samples at the end that make no full batch (of all ranks).
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.settings.drop_last = drop_last;
        self
    }

    /// Threads that make batches ahead of the loop; with 0, which is the default, the loop makes each when it wants it.
    pub fn num_workers(mut self, n: usize) -> Self {
        self.settings.num_workers = n;
        self
    }

    /// Batches that each worker makes ahead, 2 by default.
    pub fn prefetch_factor(mut self, n: usize) -> Self {
        self.settings.prefetch_factor = n;
        self
    }

    /// The device of the batches of a loader that is not prepared; a prepared one uses its rank's.
    pub fn device(mut self, device: &Device) -> Self {
        self.settings.device = Some(device.clone());
        self
    }

    /// Goes to an epoch, whose order comes next. Without it each full iteration goes on to the next by itself.
    pub fn set_epoch(&self, epoch: u64) {
        self.position.set_epoch(epoch);
    }

    /// The epoch of the iteration that runs, or comes next.
    pub fn epoch(&self) -> u64 {
        self.position.epoch()
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self.data, Data::Stream(_))
    }

    /// The sampler's rank, where it has one.
    pub(super) fn replica(&self) -> Option<Replica> {
        self.settings.sampler.as_ref().and_then(|sampler| sampler.replica())
    }

    pub(super) fn order(&self) -> Result<Order> {
        let Settings { shuffle, sampler, batch_sampler, drop_last, .. } = &self.settings;
        let usage = |text: &str| Err(Error::Usage(format!("data loader: {text}")));
        if self.is_stream() && (*shuffle || sampler.is_some() || batch_sampler.is_some()) {
            return usage(
                "an iterable data set has its own order; shuffle inside of it, or use a Dataset, instead of shuffle, \
                 sampler or batch_sampler",
            );
        }
        match (sampler, batch_sampler) {
            (_, Some(_)) if *shuffle || sampler.is_some() || *drop_last => usage(
                "batch_sampler is mutually exclusive with shuffle, sampler and drop_last; it decides all of them",
            ),
            (Some(_), None) if *shuffle => usage(
                "sampler is mutually exclusive with shuffle; the sampler decides the order (DistributedSampler shuffles)",
            ),
            (_, Some(batches)) => Ok(Order::Batches(batches.clone())),
            (Some(sampler), None) => Ok(Order::Sampler(sampler.clone())),
            (None, None) => Ok(if *shuffle { Order::Shuffled } else { Order::Sequential }),
        }
    }

    fn rule(&self, division: Division) -> Result<Rule> {
        let Division { rank, world, split, even, together } = division;
        let ready_made = self.settings.batch_sampler.is_some();
        if ready_made && split {
            return Err(Error::Usage(
                "data loader: split_batches divides batches of one known size, and a batch_sampler's have none; give a \
                 batch size, or batches for each rank without split_batches"
                    .to_owned(),
            ));
        }
        let batch_size = match self.settings.batch_size {
            Some(0) if !ready_made => {
                return Err(Error::Usage(
                    "data loader: batches of 0 samples; give a batch size of 1 or more".to_owned(),
                ));
            }
            Some(n) if !ready_made => n,
            _ => 1,
        };
        let shard = BatchSamplerShard::new(0, batch_size, (rank, world), split)?;
        Ok(Rule { batch_size: shard.batch_size, world, drop_last: self.settings.drop_last, even, together })
    }
}

impl<I: Send + 'static, C: Collator<I>> DataLoader<I, C> {
    /// All batches of an epoch, in their order.
    ///
    /// # Errors
    /// Settings that contradict each other, a data set that cannot be opened. What goes wrong with a batch stands in its
    /// place.
    pub fn iter(&self) -> Result<Batches<C::Batch>> {
        PreparedLoader::of(self.alone()?).iter()
    }

    /// The number of batches.
    ///
    /// # Errors
    /// An iterable data set whose length nobody knows.
    pub fn len(&self) -> Result<usize> {
        PreparedLoader::of(self.alone()?).len()
    }

    /// Whether there is no batch.
    ///
    /// # Errors
    /// As [`DataLoader::len`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// This loader without its first `n` batches, of which nothing is read.
    ///
    /// # Errors
    /// As [`DataLoader::iter`].
    pub fn skip_first_batches(&self, n: usize) -> Result<PreparedLoader<C::Batch>> {
        Ok(skip_first_batches(&PreparedLoader::of(self.alone()?), n))
    }

    fn alone(&self) -> Result<Core<C::Batch>> {
        let device = match &self.settings.device {
            Some(device) => device.clone(),
            None => Device::cpu(Isa::detect(), Par::threads(1)?),
        };
        self.core(Division::NONE, device, SEED)
    }

    /// What iterates, for a rank.
    pub(super) fn core(&self, division: Division, device: Device, seed: u64) -> Result<Core<C::Batch>> {
        let (order, rule) = (self.order()?, self.rule(division)?);
        let is_shuffled = matches!(order, Order::Shuffled);
        let collate = self.collate.clone();
        let collate = Arc::new(move |items: Vec<I>, device: &Device| collate.collate(items, device));
        let source: Arc<dyn Source<C::Batch>> =
            Arc::new(Samples { data: self.data.clone(), order, collate, device });
        let Settings { num_workers, prefetch_factor, .. } = self.settings;
        let seed = self.settings.seed.unwrap_or(seed);
        Ok(Core {
            order: LoaderState {
                source,
                position: self.position.clone(),
                seed: is_shuffled.then_some(seed),
                divided: None,
                n_at_root: None,
            },
            rule,
            rank: division.rank,
            replica: self.replica(),
            has_batch_size: self.settings.batch_sampler.is_none(),
            num_workers,
            depth: num_workers.saturating_mul(prefetch_factor.max(1)),
            left_out: Arc::new(AtomicUsize::new(0)),
            warned: AtomicBool::new(false),
            seen: Mutex::default(),
            accelerator: None,
            codec: None,
        })
    }
}
