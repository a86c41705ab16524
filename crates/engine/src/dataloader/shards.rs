//! Which samples of a data set a rank gets in a custom training loop: accelerate's `BatchSamplerShard` and torch's
//! `DistributedSampler`, as arithmetic. (`oarlock train` uses [`super::Sampler`], which repeats no sample.)

use std::ops::Range;

use rand_mt::Mt;

use crate::{Error, Result};

/// The batches of one rank: accelerate's `BatchSamplerShard` over a sequential order of samples.
///
/// The samples stand in one order; a round takes a batch for each rank, rank by rank. `split_batches` is the same with
/// batches of which each rank gets an equal piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSamplerShard {
    /// Samples of the data set.
    pub len: usize,
    /// Samples that were given before, at the beginning of the order: a run that goes on gives the others.
    pub first: usize,
    /// Samples of a rank in one batch.
    pub batch_size: usize,
    /// Ranks.
    pub world: usize,
    /// This rank.
    pub rank: usize,
    /// Leave out the last round where it is not full.
    pub drop_last: bool,
    /// Fill the last round with samples from the beginning, so that all ranks have as many full batches; else the last
    /// batches are short, or missing on the last ranks.
    pub even_batches: bool,
}

impl BatchSamplerShard {
    /// The shard of a rank; with `split_batches` the batch size is that of all ranks together.
    ///
    /// # Errors
    /// When a number is 0 or too large, the rank is none of the world, or batches cannot be split evenly.
    pub fn new(
        len: usize,
        batch_size: usize,
        (rank, world): (usize, usize),
        split_batches: bool,
    ) -> Result<BatchSamplerShard> {
        if batch_size == 0 || world == 0 || rank >= world {
            let cause = format!("batches of {batch_size} for rank {rank} of {world}");
            return Err(of_batch_size(&cause));
        }
        if split_batches && !batch_size.is_multiple_of(world) {
            let cause = format!(
                "with split_batches a batch ({batch_size}) is divided among the ranks ({world}); give a multiple"
            );
            return Err(of_batch_size(&cause));
        }
        let batch_size = if split_batches { batch_size / world } else { batch_size };
        if batch_size.checked_mul(world).is_none() {
            let cause = format!("batches of {batch_size} samples for each of {world} ranks are too large");
            return Err(of_batch_size(&cause));
        }
        Ok(BatchSamplerShard { len, first: 0, batch_size, world, rank, drop_last: false, even_batches: true })
    }

    /// The number of batches that [`Self::batch`] gives. (The original's `len()` counts one too many on the last ranks
    /// where batches are split and not evened.)
    pub fn n_batches(&self) -> usize {
        let rest_len = self.len.saturating_sub(self.first);
        let (full, rest) = (rest_len / self.round(), rest_len % self.round());
        let last = match (self.drop_last, self.even_batches) {
            (true, _) => false,
            (false, true) => rest > 0,
            (false, false) => rest > self.rank.saturating_mul(self.batch_size),
        };
        full + usize::from(last)
    }

    /// The samples of a batch of all ranks.
    pub fn round(&self) -> usize {
        self.world.saturating_mul(self.batch_size)
    }

    /// The samples of a batch of this rank, by their places in the order.
    ///
    /// # Errors
    /// No memory for a batch that is filled up.
    pub fn batch(&self, batch: usize) -> Result<Vec<usize>> {
        let places = self.places(batch);
        if !self.even_batches || self.drop_last {
            return Ok((places.start..places.end.min(self.len)).collect());
        }
        // What is missing is filled from the first round, again and again where that is short as well.
        let first_round = self.len.min(self.round()).max(1);
        let mut samples = room(places.len())?;
        samples.extend(
            places.map(|place| if place < self.len { place } else { (place - self.len) % first_round }),
        );
        Ok(samples)
    }

    /// How many samples of a batch are not repeats that fill it up; they stand first.
    pub fn n_real(&self, batch: usize) -> usize {
        let places = self.places(batch);
        self.len.clamp(places.start, places.end) - places.start
    }

    fn places(&self, batch: usize) -> Range<usize> {
        // What is behind the last number is behind every data set.
        let before = batch.saturating_mul(self.world).saturating_add(self.rank);
        let begin = self.first.saturating_add(before.saturating_mul(self.batch_size));
        begin..begin.saturating_add(self.batch_size)
    }

    /// All batches of this rank in their order.
    pub fn batches(&self) -> impl Iterator<Item = Result<Vec<usize>>> {
        (0..self.n_batches()).map(|batch| self.batch(batch))
    }
}

/// A list with room for the `n` samples of a batch.
///
/// # Errors
/// No memory for so many.
pub(super) fn room<T>(n: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(n).map_err(|_| {
        of_batch_size(&format!("a batch of {n} samples does not fit into memory; give a smaller one"))
    })?;
    Ok(list)
}

fn of_batch_size(cause: &str) -> Error {
    Error::Usage(format!("batch_size: {cause}"))
}

/// The samples of one rank: torch's `DistributedSampler`, with the same order as torch's for the same seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistributedSampler {
    /// Samples of the data set.
    pub len: usize,
    /// Ranks.
    pub num_replicas: usize,
    /// This rank.
    pub rank: usize,
    /// Draw a new order in every epoch.
    pub shuffle: bool,
    /// Seed of the orders.
    pub seed: u64,
    /// Leave out samples that not every rank would have; else samples from the beginning are repeated.
    pub drop_last: bool,
    /// The epoch, which with the seed chooses the order.
    pub epoch: u64,
}

impl DistributedSampler {
    /// The sampler of a rank, shuffling with seed 0, as torch's defaults are.
    pub fn new(len: usize, (rank, num_replicas): (usize, usize)) -> DistributedSampler {
        DistributedSampler { len, num_replicas, rank, shuffle: true, seed: 0, drop_last: false, epoch: 0 }
    }

    /// From now on the order of this epoch. Without it every epoch has the same order.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Samples of each rank.
    pub fn num_samples(&self) -> usize {
        let replicas = self.num_replicas.max(1);
        if self.drop_last { self.len / replicas } else { self.len.div_ceil(replicas) }
    }

    /// The samples of this rank in their order.
    pub fn indices(&self) -> Vec<usize> {
        if self.len == 0 {
            return Vec::new();
        }
        let order = self.shuffle.then(|| randperm(self.len, self.seed.wrapping_add(self.epoch)));
        // Both numbers are anybody's; their product may be too large for a usize, and their place is not.
        let place = |i: usize| {
            ((i as u128 * self.num_replicas as u128 + self.rank as u128) % self.len as u128) as usize
        };
        (0..self.num_samples()).map(place).map(|i| order.as_ref().map_or(i, |order| order[i])).collect()
    }
}

/// torch's `randperm` on a CPU generator of this seed: Fisher and Yates' shuffle, drawn from a Mersenne Twister.
pub(super) fn randperm(n: usize, seed: u64) -> Vec<usize> {
    // torch's generator keeps the low half of a seed.
    let mut random = Mt::new(seed as u32);
    let mut order: Vec<usize> = (0..n).collect();
    for i in 0..n.saturating_sub(1) {
        let step = random.next_u32() as usize % (n - i);
        order.swap(i, i + step);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(samples: &[usize]) -> String {
        samples.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }

    fn or_dash(text: String) -> String {
        if text.is_empty() { "-".to_owned() } else { text }
    }

    /// What accelerate and torch give, written by bench/golden/make_samplers.py.
    #[test]
    fn every_rank_gets_the_samples_of_the_originals() {
        let (mut n_cases, mut other_len) = (0, 0);
        for line in include_str!("../../../oarlock/tests/golden/samplers.txt")
            .lines()
            .filter(|line| !line.starts_with('#'))
        {
            let words: Vec<&str> = line.split(' ').collect();
            let n = |i: usize| words[i].parse::<usize>().unwrap();
            match words[0] {
                "batch" => {
                    let shard = BatchSamplerShard::new(n(1), n(2), (n(4), n(3)), n(6) == 1);
                    if words[8] == "error" {
                        assert!(shard.is_err(), "{line}");
                        continue;
                    }
                    let shard =
                        BatchSamplerShard { drop_last: n(5) == 1, even_batches: n(7) == 1, ..shard.unwrap() };
                    let batches: Vec<String> = shard.batches().map(|batch| join(&batch.unwrap())).collect();
                    assert_eq!(or_dash(batches.join(";")), words[9], "{line}");
                    other_len += usize::from(shard.n_batches() != n(8));
                }
                "distributed" => {
                    let sampler =
                        DistributedSampler { shuffle: false, ..DistributedSampler::new(n(1), (n(3), n(2))) };
                    let sampler = DistributedSampler { drop_last: n(4) == 1, ..sampler };
                    assert_eq!(sampler.num_samples(), n(5), "{line}");
                    assert_eq!(or_dash(join(&sampler.indices())), words[6], "{line}");
                }
                _ => {
                    let mut sampler = DistributedSampler::new(n(1), (n(3), n(2)));
                    sampler.seed = n(4) as u64;
                    sampler.set_epoch(n(5) as u64);
                    assert_eq!(join(&sampler.indices()), words[6], "{line}");
                }
            }
            n_cases += 1;
        }
        assert!(n_cases > 3000);
        // Where the original's len() is not the number of its batches.
        assert!(other_len > 0 && other_len < 200, "{other_len}");
    }
}
