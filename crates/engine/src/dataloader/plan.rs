//! The batches of an epoch in their order, each as a job that a worker can do.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use oarlock_tensor::Device;

use super::dataset::{Data, Dataset, Items, IterableDataset};
use super::sampler::{Order, Units};
use super::shards::{BatchSamplerShard, room};
use crate::Result;

/// A batch that is yet to be made.
pub(super) struct Planned<B> {
    /// The rank that it is for.
    pub rank: usize,
    /// Its samples.
    pub rows: usize,
    /// How many of its samples are not repeats, where some are.
    pub real: Option<usize>,
    pub job: Box<dyn FnOnce() -> Result<B> + Send>,
}

pub(super) type EpochPlan<B> = Box<dyn Iterator<Item = Result<Planned<B>>> + Send>;

/// How the units of an epoch become batches of ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// Units of a rank in one batch.
    pub batch_size: usize,
    pub world: usize,
    pub drop_last: bool,
    /// Fill the last round up.
    pub even: bool,
    /// End with the rank that ends first.
    pub together: bool,
}

impl Rule {
    pub fn shard(&self, len: usize, first: usize, rank: usize) -> BatchSamplerShard {
        let Rule { batch_size, world, drop_last, even, .. } = *self;
        BatchSamplerShard { len, first, batch_size, world, rank, drop_last, even_batches: even }
    }

    /// The batches of a rank.
    pub fn n_batches(&self, len: usize, first: usize, rank: usize) -> usize {
        // The last rank has the fewest.
        self.shard(len, first, if self.together { self.world - 1 } else { rank }).n_batches()
    }

    /// Units that no rank gets.
    fn n_left_out(&self, len: usize, first: usize) -> usize {
        let given: usize = (0..self.world)
            .map(|rank| {
                let n = self.n_batches(len, first, rank);
                let shard = self.shard(len, first, rank);
                // All but the last are full.
                n.saturating_sub(1) * self.batch_size + n.checked_sub(1).map_or(0, |last| shard.n_real(last))
            })
            .sum();
        len.saturating_sub(first).saturating_sub(given)
    }

    pub fn round(&self) -> usize {
        self.world.saturating_mul(self.batch_size)
    }
}

/// One epoch, or what is left of it.
pub(super) struct Epoch {
    pub rule: Rule,
    /// The ranks whose batches are wanted.
    pub ranks: Range<usize>,
    pub epoch: u64,
    pub seed: u64,
    /// Units that were given before.
    pub first: usize,
    /// Where the units are counted that no rank gets.
    pub left_out: Arc<AtomicUsize>,
}

type Collate<I, B> = Arc<dyn Fn(Vec<I>, &Device) -> Result<B> + Send + Sync>;

/// Where batches come from: a data set in an order, and how samples become a batch.
pub(super) trait Source<B>: Send + Sync {
    fn plan(&self, epoch: Epoch) -> Result<EpochPlan<B>>;

    /// Samples, or ready-made batches, of an epoch; `None` where nobody knows.
    fn n_units(&self, epoch: u64) -> Result<Option<usize>>;

    /// Samples of the data set.
    fn n_samples(&self) -> Option<usize>;
}

pub(super) struct Samples<I, B> {
    pub data: Data<I>,
    pub order: Order,
    pub collate: Collate<I, B>,
    pub device: Device,
}

impl<I: Send + 'static, B: Send + 'static> Source<B> for Samples<I, B> {
    fn plan(&self, epoch: Epoch) -> Result<EpochPlan<B>> {
        match &self.data {
            Data::Map(dataset) => {
                let units = self.order.units(dataset.len(), epoch.epoch, epoch.seed)?;
                Ok(self.of_units(dataset.clone(), units, epoch))
            }
            Data::Stream(dataset) => {
                epoch.left_out.store(0, Relaxed);
                Ok(Box::new(Rounds {
                    items: Some(dataset.iter_from(epoch.epoch, epoch.first)?),
                    n_read: epoch.first,
                    dataset: dataset.clone(),
                    ready: Vec::new().into_iter(),
                    collate: self.collate.clone(),
                    device: self.device.clone(),
                    epoch,
                }))
            }
        }
    }

    fn n_units(&self, epoch: u64) -> Result<Option<usize>> {
        Ok(match (&self.data, &self.order) {
            (Data::Stream(dataset), _) => dataset.length(),
            (Data::Map(dataset), Order::Sequential | Order::Shuffled) => Some(dataset.len()),
            (Data::Map(dataset), order) => Some(order.units(dataset.len(), epoch, 0)?.len()),
        })
    }

    fn n_samples(&self) -> Option<usize> {
        match &self.data {
            Data::Map(dataset) => Some(dataset.len()),
            Data::Stream(dataset) => dataset.length(),
        }
    }
}

impl<I: Send + 'static, B: Send + 'static> Samples<I, B> {
    fn of_units(&self, dataset: Arc<dyn Dataset<Item = I>>, units: Units, epoch: Epoch) -> EpochPlan<B> {
        let Epoch { rule, ranks, first, left_out, .. } = epoch;
        let (len, units) = (units.len(), Arc::new(units));
        left_out.store(rule.n_left_out(len, first), Relaxed);
        let n_rounds = ranks.clone().map(|rank| rule.n_batches(len, first, rank)).max().unwrap_or(0);
        let order = (0..n_rounds).flat_map(move |round| ranks.clone().map(move |rank| (round, rank)));
        let (collate, device) = (self.collate.clone(), self.device.clone());
        Box::new(order.filter(move |(round, rank)| *round < rule.n_batches(len, first, *rank)).map(
            move |(round, rank)| {
                let shard = rule.shard(len, first, rank);
                let places = shard.batch(round)?;
                let n_real = shard.n_real(round);
                let real = (n_real < places.len()).then_some(match &*units {
                    // A repeated batch is repeated as a whole.
                    Units::Batches(_) => 0,
                    _ => n_real,
                });
                let samples = units.samples(&places);
                let rows = samples.len();
                let dataset = dataset.clone();
                let (collate, device) = (collate.clone(), device.clone());
                let job = move || {
                    let items = samples.into_iter().map(|i| dataset.get(i)).collect::<Result<Vec<I>>>()?;
                    collate(items, &device)
                };
                Ok(Planned { rank, rows, real, job: Box::new(job) })
            },
        ))
    }
}

/// The batches of a stream: it is read round by round, and each rank keeps what is its own.
struct Rounds<I, B> {
    dataset: Arc<dyn IterableDataset<Item = I>>,
    /// `None` at its end.
    items: Option<Items<I>>,
    /// Samples read, those of an earlier run included.
    n_read: usize,
    ready: std::vec::IntoIter<Planned<B>>,
    collate: Collate<I, B>,
    device: Device,
    epoch: Epoch,
}

impl<I: Send + 'static, B: Send + 'static> Iterator for Rounds<I, B> {
    type Item = Result<Planned<B>>;

    fn next(&mut self) -> Option<Result<Planned<B>>> {
        if let Some(planned) = self.ready.next() {
            return Some(Ok(planned));
        }
        match self.round() {
            Ok(round) => {
                self.ready = round.into_iter();
                self.ready.next().map(Ok)
            }
            Err(error) => {
                self.items = None;
                Some(Err(error))
            }
        }
    }
}

impl<I: Send + 'static, B: Send + 'static> Rounds<I, B> {
    /// The batches of the next round; none at the end.
    fn round(&mut self) -> Result<Vec<Planned<B>>> {
        let Epoch { rule, ranks, .. } = &self.epoch;
        let Some(items) = &mut self.items else { return Ok(Vec::new()) };
        // A batch that will be filled up needs its whole length, whatever the stream gives.
        let is_filled = rule.even && !rule.drop_last;
        let mut batches = Vec::with_capacity(ranks.len());
        for _ in ranks.clone() {
            batches.push(if is_filled { room(rule.batch_size)? } else { Vec::new() });
        }
        let mut keep = |place: usize, item: I| {
            if let Some(batch) =
                (place / rule.batch_size).checked_sub(ranks.start).and_then(|i| batches.get_mut(i))
            {
                batch.push(item);
            }
        };
        let mut n = 0;
        while n < rule.round() {
            let Some(item) = items.next() else { break };
            keep(n, item?);
            n += 1;
        }
        self.n_read += n;
        if n < rule.round() {
            self.items = None;
            let is_wanted =
                !rule.drop_last && (rule.even || !rule.together || n > rule.round() - rule.batch_size);
            if !is_wanted || n == 0 {
                self.epoch.left_out.store(n, Relaxed);
                return Ok(Vec::new());
            }
            if rule.even {
                // From the first round, again and again where that is short as well.
                let first_round = self.n_read.min(rule.round());
                let mut place = n;
                while place < rule.round() {
                    for item in
                        self.dataset.iter(self.epoch.epoch)?.take(first_round.min(rule.round() - place))
                    {
                        keep(place, item?);
                        place += 1;
                    }
                }
            }
        }
        let batches = ranks.clone().zip(batches).filter(|(_, items)| !items.is_empty());
        let planned = batches.map(|(rank, items)| {
            let n_real = n.saturating_sub(rank * rule.batch_size).min(items.len());
            let (collate, device) = (self.collate.clone(), self.device.clone());
            Planned {
                rank,
                rows: items.len(),
                real: (n_real < items.len()).then_some(n_real),
                job: Box::new(move || collate(items, &device)),
            }
        });
        Ok(planned.collect())
    }
}
