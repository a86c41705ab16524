//! Which rows a rank computes, and when: a pure function of the seed and of how many samples came before.
//!
//! The samples of an epoch stand in one global order, shuffled or not, that knows no ranks. A step takes the next
//! `accumulation * micro_batch * world` of them: micro-batch `a` the `a`-th `micro_batch * world`, and of these rank
//! `r` the `r`-th `micro_batch`. What a run must remember is therefore one number, the samples consumed, and it can
//! go on with another number of ranks.
//!
//! Rows without padding are dealt to the ranks of a micro-batch by their tokens instead ([`super::deal`]).
//!
//! Where rows have [`Lengths`], the order of an epoch is one in which neighbors are alike.
//!
//! The end of an epoch is as in the Hugging Face Trainer: the last step has fewer micro-batches when the epoch is not
//! a multiple of the step, and no step reaches into the next epoch. Where the last micro-batch is not full, rows are
//! missing (`None`) on the last ranks: they are computed as rows without targets, so that every rank takes part in
//! every collective, every sample counts once, and none twice.

use std::sync::Arc;

use oarlock_tensor::cpu::random::{Permutation, Stream};

use super::error::{Error, Result};
use super::lengths::Lengths;

/// The order of samples and their split over ranks and micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// Samples in an epoch.
    pub len: u64,
    /// Chooses the order.
    pub seed: u64,
    /// Whether an epoch has an order of its own; otherwise that of the file.
    pub shuffle: bool,
    /// Data-parallel ranks.
    pub world: u64,
    /// This rank.
    pub rank: u64,
    /// Samples of one rank in one micro-batch.
    pub micro_batch: u64,
    /// Micro batches in one step.
    pub accumulation: u64,
    /// The lengths of the rows, where rows of similar length are to be batched together. Goes with `shuffle`.
    pub lengths: Option<Lengths>,
}

/// The samples of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRows {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The position that this step begins at: samples consumed before it, over all epochs and ranks.
    pub begin: u64,
    /// The position after it.
    pub end: u64,
    /// This rank's rows, micro-batch by micro-batch, each of `micro_batch` rows; `None` where the epoch has ended.
    pub micro_batches: Vec<Vec<Option<u64>>>,
}

impl Sampler {
    /// Steps of one micro-batch in the order of the file, as evaluations take them.
    pub fn in_order(len: u64, world: u64, rank: u64, micro_batch: u64) -> Sampler {
        Sampler { len, seed: 0, shuffle: false, world, rank, micro_batch, accumulation: 1, lengths: None }
    }

    /// Checks the numbers against each other.
    ///
    /// # Errors
    /// When one of them is zero, the rank is not below the number of ranks, or a step has more samples than 32 bits count.
    pub fn check(&self) -> Result<()> {
        let positive = [
            ("dataset", self.len),
            ("world_size", self.world),
            ("per_device_train_batch_size", self.micro_batch),
            ("gradient_accumulation_steps", self.accumulation),
        ];
        for (key, value) in positive {
            if value == 0 {
                return Err(Error::Setting {
                    key,
                    cause: "0 samples, ranks or steps; give at least 1".into(),
                });
            }
        }
        if self.rank >= self.world {
            let cause = format!("{} of {} ranks; give a rank below their number", self.rank, self.world);
            return Err(Error::Setting { key: "rank", cause });
        }
        let step = self.world.checked_mul(self.micro_batch).and_then(|n| n.checked_mul(self.accumulation));
        match step {
            Some(step) if step <= u64::from(u32::MAX) => Ok(()),
            _ => {
                let cause = format!(
                    "{} steps of {} samples on {} ranks are too large; a step has at most {} samples",
                    self.accumulation,
                    self.micro_batch,
                    self.world,
                    u32::MAX
                );
                Err(Error::Setting { key: "train_batch_size", cause })
            }
        }
    }

    /// The row that stands at place `i` (below `len`) of an epoch's global order.
    pub fn row_at(&self, epoch: u64, i: u64) -> u64 {
        self.order(epoch).row(i)
    }

    /// Samples of a full step, over all ranks.
    pub fn step_samples(&self) -> u64 {
        self.accumulation * self.micro_batch_samples()
    }

    /// Steps in an epoch, the shorter last one included.
    pub fn steps_per_epoch(&self) -> u64 {
        self.len.div_ceil(self.step_samples())
    }

    /// Passes over the data at a position, as the Trainer of transformers counts them: micro-batches of all ranks over the
    /// micro-batches of an epoch, the last of which may be smaller.
    pub fn epochs(&self, position: u64) -> f64 {
        let (whole, rest) = (position / self.len, position % self.len);
        let done = rest.div_ceil(self.micro_batch_samples()) as f64;
        whole as f64 + done / self.len.div_ceil(self.micro_batch_samples()) as f64
    }

    /// The position after `steps` steps from the beginning.
    pub fn position_after(&self, steps: u64) -> u64 {
        let (epochs, rest) = (steps / self.steps_per_epoch(), steps % self.steps_per_epoch());
        epochs.saturating_mul(self.len).saturating_add(rest * self.step_samples())
    }

    /// The step that begins at `position`, however the samples before it were taken.
    pub fn step_rows(&self, position: u64) -> StepRows {
        let micro_batches = self
            .places(position)
            .map(|place| {
                let mine = place.saturating_add(self.rank * self.micro_batch);
                self.rows(position / self.len, mine, self.micro_batch)
            })
            .collect();
        StepRows { epoch: position / self.len, begin: position, end: self.end(position), micro_batches }
    }

    /// The rows of all ranks in the step that begins at `position`.
    pub(super) fn all_rows(&self, position: u64) -> impl Iterator<Item = u64> {
        let (epoch, first) = (position / self.len, position % self.len);
        let order = self.order(epoch);
        (first..first + (self.end(position) - position)).map(move |place| order.row(place))
    }

    fn end(&self, position: u64) -> u64 {
        position.saturating_add(self.step_samples().min(self.len - position % self.len))
    }

    fn micro_batch_samples(&self) -> u64 {
        self.micro_batch * self.world
    }

    /// The places in the epoch at which the step's micro-batches begin.
    fn places(&self, position: u64) -> impl Iterator<Item = u64> {
        let first = position % self.len;
        let last = first + (self.end(position) - position);
        (0..self.accumulation)
            .map(move |a| first.saturating_add(a * self.micro_batch_samples()))
            .take_while(move |&p| p < last)
    }

    /// An epoch's global order.
    fn order(&self, epoch: u64) -> Order {
        let stream = Stream { seed: self.seed, stream: epoch };
        match &self.lengths {
            _ if !self.shuffle => Order::File,
            None => Order::Random(Permutation::new(stream, self.len)),
            Some(lengths) => Order::Listed(lengths.order(stream, self.step_samples())),
        }
    }

    fn rows(&self, epoch: u64, first: u64, n: u64) -> Vec<Option<u64>> {
        let order = self.order(epoch);
        (first..first.saturating_add(n)).map(|place| (place < self.len).then(|| order.row(place))).collect()
    }
}

/// The order of an epoch.
enum Order {
    File,
    Random(Permutation),
    Listed(Arc<[u64]>),
}

impl Order {
    /// The row at a place. A place behind the epoch's end has none; callers ask for none.
    fn row(&self, place: u64) -> u64 {
        match self {
            Order::File => place,
            Order::Random(order) => order.get(place).unwrap_or(place),
            Order::Listed(order) => order.get(place as usize).copied().unwrap_or(place),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sampler() -> impl Strategy<Value = Sampler> {
        (1u64..200, any::<u64>(), any::<bool>(), 1u64..6, 1u64..5, 1u64..5).prop_map(
            |(len, seed, shuffle, world, micro_batch, accumulation)| Sampler {
                len,
                seed,
                shuffle,
                world,
                rank: 0,
                micro_batch,
                accumulation,
                lengths: None,
            },
        )
    }

    /// The rows of one step in global order, put together from what every rank got.
    fn gathered(sampler: &Sampler, position: u64) -> Vec<u64> {
        let ranks: Vec<StepRows> =
            (0..sampler.world).map(|rank| Sampler { rank, ..sampler.clone() }.step_rows(position)).collect();
        let n = ranks[0].micro_batches.len();
        assert!(ranks.iter().all(|w| w.micro_batches.len() == n && w.end == ranks[0].end));
        let rows = (0..n).flat_map(|a| ranks.iter().flat_map(move |w| w.micro_batches[a].clone()));
        let rows: Vec<Option<u64>> = rows.collect();
        let full = rows.iter().take_while(|r| r.is_some()).count();
        assert!(rows[full..].iter().all(Option::is_none), "missing rows stand last");
        rows.into_iter().flatten().collect()
    }

    fn epoch(sampler: &Sampler, epoch: u64) -> Vec<u64> {
        let (mut position, mut rows) = (epoch * sampler.len, Vec::new());
        while position < (epoch + 1) * sampler.len {
            rows.extend(gathered(sampler, position));
            position = sampler.step_rows(position).end;
        }
        assert_eq!(position, (epoch + 1) * sampler.len);
        rows
    }

    #[test]
    fn epochs_are_counted_in_micro_batches() {
        // 13 rows are 4 micro-batches of 4, on two ranks 2 of 8: transformers' state.epoch after each step.
        let one = Sampler { accumulation: 2, ..Sampler::in_order(13, 1, 0, 4) };
        let two = Sampler { world: 2, accumulation: 1, ..one.clone() };
        for (sampler, expected) in [(&one, [0.5, 1.0, 1.5, 2.0]), (&two, [0.5, 1.0, 1.5, 2.0])] {
            let counted = [1, 2, 3, 4].map(|steps| sampler.epochs(sampler.position_after(steps)));
            assert_eq!(counted, expected);
        }
        let three = Sampler { micro_batch: 2, accumulation: 3, ..one };
        let counted = [1, 2, 3].map(|steps| three.epochs(three.position_after(steps)));
        assert_eq!(counted, [3.0 / 7.0, 6.0 / 7.0, 1.0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_sample_once_an_epoch(sampler in sampler(), at in 0u64..3) {
            let mut rows = epoch(&sampler, at);
            if !sampler.shuffle {
                prop_assert!(rows.iter().copied().eq(0..sampler.len));
            }
            rows.sort_unstable();
            prop_assert!(rows.into_iter().eq(0..sampler.len));
        }

        #[test]
        fn the_split_does_not_change_the_order(sampler in sampler(), world in 1u64..6, micro_batch in 1u64..5) {
            let other = Sampler { world, micro_batch, accumulation: 1, ..sampler.clone() };
            prop_assert_eq!(epoch(&sampler, 1), epoch(&other, 1));
        }

        #[test]
        fn no_number_is_too_large(
            numbers in proptest::array::uniform5(prop_oneof![0u64..4, (0u32..64).prop_map(|shift| u64::MAX >> shift)]),
            position in any::<u64>(),
            shuffle in any::<bool>(),
        ) {
            let [len, world, rank, micro_batch, accumulation] = numbers;
            let sampler = Sampler { len, seed: 1, shuffle, world, rank, micro_batch, accumulation, lengths: None };
            // What passes the check has positions and steps wherever it stands.
            if sampler.check().is_ok() {
                sampler.position_after(position);
                if sampler.step_samples() < 1000 {
                    let step = sampler.step_rows(position);
                    prop_assert!(step.end >= step.begin);
                }
            }
        }

        #[test]
        fn a_step_follows_from_its_position_alone(sampler in sampler(), steps in 0u64..30) {
            let mut position = 0;
            for _ in 0..steps {
                position = sampler.step_rows(position).end;
            }
            prop_assert_eq!(position, sampler.position_after(steps));
            prop_assert!(sampler.all_rows(position).eq(gathered(&sampler, position)));
        }

        #[test]
        fn a_run_goes_on_with_another_world(sampler in sampler(), steps in 0u64..8, world in 1u64..6) {
            let position = sampler.position_after(steps.min(sampler.steps_per_epoch() - 1));
            let other = Sampler { world, ..sampler.clone() };
            let (mut at, mut rows) = (position, Vec::new());
            while at < sampler.len {
                rows.extend(gathered(&other, at));
                at = other.step_rows(at).end;
            }
            prop_assert_eq!(&rows[..], &epoch(&sampler, 0)[position as usize..]);
        }
    }

    #[test]
    fn a_step_is_split_as_documented() {
        let sampler = Sampler {
            len: 21,
            seed: 0,
            shuffle: false,
            world: 2,
            rank: 1,
            micro_batch: 2,
            accumulation: 2,
            lengths: None,
        };
        assert_eq!(sampler.steps_per_epoch(), 3);
        let step = sampler.step_rows(8);
        assert_eq!((step.epoch, step.end), (0, 16));
        assert_eq!(step.micro_batches, [[Some(10), Some(11)], [Some(14), Some(15)]]);
        let last = sampler.step_rows(16);
        assert_eq!((last.epoch, last.end), (0, 21));
        assert_eq!(last.micro_batches, [[Some(18), Some(19)], [None, None]]);
        assert_eq!(sampler.step_rows(21).epoch, 1);
        // Twenty samples end a micro-batch early: the last step is shorter.
        assert_eq!(Sampler { len: 20, ..sampler }.step_rows(16).micro_batches.len(), 1);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let good = Sampler {
            len: 8,
            seed: 0,
            shuffle: true,
            world: 2,
            rank: 1,
            micro_batch: 2,
            accumulation: 1,
            lengths: None,
        };
        assert!(good.check().is_ok());
        let error = |s: Sampler| s.check().unwrap_err().to_string();
        assert!(error(Sampler { rank: 2, ..good.clone() }).contains("2 of 2 ranks"));
        assert!(error(Sampler { micro_batch: 0, ..good.clone() }).starts_with("per_device_train_batch_size"));
        assert!(error(Sampler { accumulation: u64::MAX, ..good }).contains("too large"));
    }
}
