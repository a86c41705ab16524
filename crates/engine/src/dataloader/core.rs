//! What iterates over a loader: everything that it and its division have settled.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_comm::Communicator;

use super::plan::Rule;
use super::sampler::Replica;
use super::state::LoaderState;
use crate::accelerator::steps::loaders::LastBatch;
use crate::nn::nested::Parcel;
use crate::{Accelerator, Result};

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
