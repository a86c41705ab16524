//! Which records of a cache are trained on and which are held out, in which order.

use std::sync::Arc;

use oarlock_config::config::ValSize;

use super::cache::TokenCache;
use super::error::{Error, Result};
use super::mix::{self, Mix};
use super::numpy_random::Pcg64;

/// How records are divided into those to train on and those to validate on, and how the former are mixed: as
/// `Dataset.train_test_split(val_size, seed=val_seed)` of datasets divides them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Split {
    /// What is held out.
    pub val_size: Option<ValSize>,
    /// Chooses what is held out.
    pub val_seed: u64,
    /// Whether the order of the records to train on is that of the run. Where records are held out, it is a random one,
    /// which costs memory.
    pub keeps_order: bool,
    /// How several data sets become one.
    pub mix: Mix,
    /// Chooses among data sets.
    pub mix_seed: u64,
}

/// Which records of a cache are meant.
#[derive(Clone, Debug)]
pub(super) enum Chosen {
    AllBut,
    /// In the order in which they are listed, which may name one again.
    Only,
}

/// A choice of records: all but the `marked`, or only these. Places and lengths are in the stream of the chosen
/// records, each with the end token of a text.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub(super) cache: Arc<TokenCache>,
    /// End tokens behind each record: one behind a text, none behind a conversation.
    pub(super) n_ends: u64,
    chosen: Chosen,
    /// Ascending, unless only these are chosen.
    pub(super) marked: Vec<u64>,
    /// The summed lengths of the marked records before each, and of all.
    before: Vec<u64>,
}

impl Selection {
    /// All records.
    pub(super) fn all(cache: Arc<TokenCache>) -> Selection {
        Selection::new(cache, Chosen::AllBut, Vec::new())
    }

    /// The records to train on, and those that are held out, where there are any. These stand in the random order that chooses
    /// them; the others are mixed, and none of them is held out, however often it comes.
    ///
    /// # Errors
    /// When none would be left to train on, and when the data sets cannot be mixed so.
    pub(super) fn split(cache: Arc<TokenCache>, split: &Split) -> Result<(Selection, Option<Selection>)> {
        let n = cache.n_records();
        let n_held_out = match split.val_size {
            None => 0,
            Some(ValSize::Count(count)) => count,
            Some(ValSize::Fraction(part)) => (part * n as f64).ceil() as u64,
        };
        let refused = |cause: String| Error::Setting { key: "val_size", cause };
        if n_held_out >= n && n_held_out > 0 {
            let cause = format!("{n_held_out} of {n} records held out leave none to train on; lower it");
            return Err(refused(cause));
        }
        let order = match n_held_out {
            0 => Vec::new(),
            _ => {
                let n = u32::try_from(n).map_err(|_| {
                    refused(format!("{n} records are too many to choose among; name data in eval_dataset"))
                })?;
                Pcg64::new(split.val_seed).permutation(n)
            }
        };
        let (held_out, rest) = order.split_at(n_held_out as usize);
        let in_order = |records: &[u32]| records.iter().map(|&record| u64::from(record)).collect::<Vec<_>>();
        let mut marked = in_order(held_out);
        marked.sort_unstable();
        let rest = match mixed(&cache, &marked, split)? {
            Some(records) => Selection::new(cache.clone(), Chosen::Only, records),
            None if split.keeps_order && !rest.is_empty() => {
                Selection::new(cache.clone(), Chosen::Only, in_order(rest))
            }
            None => Selection::new(cache.clone(), Chosen::AllBut, marked),
        };
        let held_out =
            (!held_out.is_empty()).then(|| Selection::new(cache, Chosen::Only, in_order(held_out)));
        Ok((rest, held_out))
    }

    pub(super) fn new(cache: Arc<TokenCache>, chosen: Chosen, marked: Vec<u64>) -> Selection {
        let (offsets, n_ends) = (cache.offsets(), u64::from(!cache.holds_conversations()));
        let mut before = vec![0u64];
        for &record in &marked {
            let len = offsets[record as usize + 1] - offsets[record as usize] + n_ends;
            before.push(before[before.len() - 1] + len);
        }
        Selection { cache, n_ends, chosen, marked, before }
    }

    pub(super) fn n_records(&self) -> u64 {
        match self.chosen {
            Chosen::Only => self.marked.len() as u64,
            Chosen::AllBut => self.cache.n_records() - self.marked.len() as u64,
        }
    }

    pub(super) fn n_tokens(&self) -> u64 {
        let marked = self.before[self.marked.len()];
        match self.chosen {
            Chosen::Only => marked,
            Chosen::AllBut => self.cache.n_tokens() + self.n_ends * self.cache.n_records() - marked,
        }
    }

    /// The `k`-th chosen record: its number in the cache, where its tokens begin there, and how many it has.
    pub(super) fn record(&self, k: u64) -> (u64, u64, usize) {
        let record = match self.chosen {
            Chosen::Only => self.marked[k as usize],
            // The marked records before it are those that have at most k chosen ones before them.
            Chosen::AllBut => k + partition(self.marked.len(), |j| self.marked[j] - j as u64 <= k) as u64,
        };
        let offsets = self.cache.offsets();
        let (begin, end) = (offsets[record as usize], offsets[record as usize + 1]);
        (record, begin, (end - begin) as usize)
    }

    /// The chosen record (its `k`) that place `at` of the stream falls into, and where in it.
    pub(super) fn locate(&self, at: u64) -> (u64, usize) {
        if matches!(self.chosen, Chosen::Only) {
            let k = partition(self.before.len(), |j| self.before[j] <= at) - 1;
            return (k as u64, (at - self.before[k]) as usize);
        }
        let offsets = self.cache.offsets();
        let begin = |record: u64| offsets[record as usize] + self.n_ends * record;
        let n_skipped = partition(self.marked.len(), |j| begin(self.marked[j]) - self.before[j] <= at);
        let at = at + self.before[n_skipped];
        let record = partition(offsets.len(), |r| begin(r as u64) <= at) as u64 - 1;
        (record - n_skipped as u64, (at - begin(record)) as usize)
    }
}

/// The first of `0..n` for which `before` does not hold.
fn partition(n: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

impl Split {
    /// Holds out so much, and mixes nothing.
    pub fn holding_out(size: ValSize, seed: u64) -> Split {
        Split { val_size: Some(size), val_seed: seed, ..Split::default() }
    }
}

/// The records that are not held out, in the order of the mix; `None` where that is the order of the files.
fn mixed(cache: &TokenCache, held_out: &[u64], split: &Split) -> Result<Option<Vec<u64>>> {
    if split.mix == Mix::Concat {
        return Ok(None);
    }
    let (mut begin, mut left, mut sizes) = (0, Vec::new(), Vec::new());
    for n in cache.parts()? {
        let before = left.len();
        left.extend((begin..begin + n).filter(|record| held_out.binary_search(record).is_err()));
        sizes.push((left.len() - before) as u64);
        begin += n;
    }
    let order = mix::order(&sizes, &split.mix, split.mix_seed)?;
    Ok(order.map(|rows| rows.into_iter().map(|row| left[row as usize]).collect()))
}
