//! In which order a loader takes the samples of a data set.

use std::sync::Arc;

use super::shards::{DistributedSampler, randperm};
use crate::{Error, Result};

/// An order of samples: torch's `Sampler`.
pub trait Sampler: Send + Sync + 'static {
    /// The numbers of the samples of an epoch, in their order. Every rank comes to the same ones.
    fn indices(&self, epoch: u64) -> Vec<usize>;

    /// Whose samples these are, where they are not those of all ranks together. Such a sampler divides a data set
    /// itself, and a prepared loader divides it no further.
    fn replica(&self) -> Option<Replica> {
        None
    }
}

/// A function that orders an epoch.
impl<F: Fn(u64) -> Vec<usize> + Send + Sync + 'static> Sampler for F {
    fn indices(&self, epoch: u64) -> Vec<usize> {
        self(epoch)
    }
}

/// The rank that a sampler is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The rank.
    pub rank: usize,
    /// Of how many.
    pub world: usize,
    /// How many samples it gives.
    pub n: usize,
    /// How many of them are not repeats; they come first.
    pub n_real: usize,
}

/// The epoch of the loader is added to the sampler's own.
impl Sampler for DistributedSampler {
    fn indices(&self, epoch: u64) -> Vec<usize> {
        DistributedSampler { epoch: self.epoch.wrapping_add(epoch), ..*self }.indices()
    }

    fn replica(&self) -> Option<Replica> {
        let world = self.num_replicas.max(1);
        let own = self.len.saturating_sub(self.rank).div_ceil(world);
        Some(Replica { rank: self.rank, world, n: self.num_samples(), n_real: own.min(self.num_samples()) })
    }
}

/// An order of ready-made batches, whose sizes may differ: torch's `BatchSampler`.
pub trait BatchSampler: Send + Sync + 'static {
    /// The batches of an epoch, each the numbers of its samples. Every rank comes to the same ones.
    fn batches(&self, epoch: u64) -> Vec<Vec<usize>>;
}

/// A function that divides an epoch into batches.
impl<F: Fn(u64) -> Vec<Vec<usize>> + Send + Sync + 'static> BatchSampler for F {
    fn batches(&self, epoch: u64) -> Vec<Vec<usize>> {
        self(epoch)
    }
}

/// How the loader was told to order.
#[derive(Clone)]
pub(super) enum Order {
    Sequential,
    Shuffled,
    Sampler(Arc<dyn Sampler>),
    Batches(Arc<dyn BatchSampler>),
}

/// What is divided among the ranks in an epoch: samples, or ready-made batches.
pub(super) enum Units {
    All(usize),
    Samples(Vec<usize>),
    Batches(Vec<Vec<usize>>),
}

impl Order {
    /// The units of an epoch of a data set of `len` samples.
    pub fn units(&self, len: usize, epoch: u64, seed: u64) -> Result<Units> {
        let checked = |indices: &[usize]| match indices.iter().find(|index| **index >= len) {
            Some(index) => Err(Error::Usage(format!(
                "a sampler gave the sample {index} of a data set of {len}; samples have the numbers from 0 to {}",
                len.saturating_sub(1)
            ))),
            None => Ok(()),
        };
        Ok(match self {
            Order::Sequential => Units::All(len),
            Order::Shuffled => Units::Samples(randperm(len, seed.wrapping_add(epoch))),
            Order::Sampler(sampler) => {
                let indices = sampler.indices(epoch);
                checked(&indices)?;
                Units::Samples(indices)
            }
            Order::Batches(sampler) => {
                let batches = sampler.batches(epoch);
                batches.iter().try_for_each(|batch| checked(batch))?;
                Units::Batches(batches)
            }
        })
    }
}

impl Units {
    pub fn len(&self) -> usize {
        match self {
            Units::All(len) => *len,
            Units::Samples(order) => order.len(),
            Units::Batches(batches) => batches.len(),
        }
    }

    /// The samples at these places.
    pub fn samples(&self, places: &[usize]) -> Vec<usize> {
        match self {
            Units::All(_) => places.to_vec(),
            Units::Samples(order) => places.iter().map(|place| order[*place]).collect(),
            Units::Batches(batches) => places.iter().flat_map(|place| &batches[*place]).copied().collect(),
        }
    }
}
