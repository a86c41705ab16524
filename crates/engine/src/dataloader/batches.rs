//! The batches of one iteration, one read ahead, and what the accelerator is told about each.

use std::sync::Arc;

use oarlock_comm::{Communicator, Scalar};

use super::core::Core;
use super::dispatch::Dispatch;
use super::plan::Epoch;
use super::prefetch::{Prefetch, RankBatch};
use crate::Result;
use crate::accelerator::steps::loaders::{LastBatch, Loaders};

/// The batches of an iteration. When it ends, or is dropped, the accelerator's state is that of the loop around it.
pub struct Batches<B> {
    core: Arc<Core<B>>,
    reader: Reader<B>,
    epoch: u64,
    /// Units given to all ranks so far.
    given: usize,
    /// Under which number the accelerator knows it; taken when it ends.
    running: Option<u64>,
    ended: bool,
}

/// Who reads.
enum Reader<B> {
    /// This rank, its own batches.
    Own {
        batches: Prefetch<B>,
        ahead: Option<Result<RankBatch<B>>>,
        /// With whom it ends, where nobody can compute when that is.
        together: Option<Communicator>,
    },
    /// Rank 0, those of all ranks.
    Dispatch(Dispatch<B>),
}

impl<B: Send + 'static> Batches<B> {
    pub(super) fn begin(core: Arc<Core<B>>, skip: usize) -> Result<Batches<B>> {
        let (epoch, first) = core.order.position.begin();
        // Batches of the epoch: those that were given before a state was saved are among them.
        let first = first.max(skip.saturating_mul(core.rule.round()));
        let plan = |ranks| {
            let (rule, seed) = (core.rule, core.order.seed.unwrap_or_default());
            core.order.source.plan(Epoch { rule, ranks, epoch, seed, first, left_out: core.left_out.clone() })
        };
        let start = |ranks| Prefetch::start(plan(ranks)?, core.num_workers, core.depth);
        let reader = match (&core.codec, &core.accelerator) {
            (Some(_), Some(accelerator)) => {
                let batches = (core.rank == 0).then(|| start(0..core.rule.world));
                Reader::Dispatch(Dispatch::begin(accelerator.data_ranks().clone(), batches))
            }
            _ => {
                let together = core.together();
                let mut batches = start(core.first_rank()..core.first_rank() + 1)?;
                let ahead = read(&mut batches, together.as_ref())?;
                Reader::Own { batches, ahead, together }
            }
        };
        let running = core
            .accelerator
            .as_ref()
            .map(|accelerator| accelerator.inner.window.with_loaders(Loaders::begin));
        Ok(Batches { core, reader, epoch, given: first, running, ended: false })
    }
}

/// The next batch of this rank; none once a rank has none.
#[track_caller]
fn read<B: Send + 'static>(
    batches: &mut Prefetch<B>,
    together: Option<&Communicator>,
) -> Result<Option<Result<RankBatch<B>>>> {
    let next = batches.next();
    if let Some(comm) = together {
        let mut all_have = [f64::from(u8::from(next.is_some()))];
        comm.all_reduce_f64(&mut all_have, Scalar::Min)?;
        if all_have[0] == 0.0 {
            return Ok(None);
        }
    }
    Ok(next)
}

impl<B: Send + 'static> Reader<B> {
    #[track_caller]
    fn next(&mut self, core: &Core<B>) -> Option<Result<RankBatch<B>>> {
        match self {
            Reader::Own { batches, ahead, together } => {
                let mut given = ahead.take()?;
                if let Ok(given) = &mut given {
                    match read(batches, together.as_ref()) {
                        Ok(next) => *ahead = next,
                        Err(error) => return Some(Err(error)),
                    }
                    given.is_last = ahead.is_none();
                }
                Some(given)
            }
            Reader::Dispatch(dispatch) => dispatch.next(core),
        }
    }
}

impl<B: Send + 'static> Iterator for Batches<B> {
    type Item = Result<B>;

    #[track_caller]
    fn next(&mut self) -> Option<Result<B>> {
        if self.ended {
            return None;
        }
        match self.reader.next(&self.core) {
            Some(Ok(given)) => {
                // Repeats count for nothing, and neither does what a short last batch lacks.
                self.given = self.given.saturating_add(self.core.rule.round());
                let order = &self.core.order;
                let len = if given.is_last { order.n_units(self.epoch).ok().flatten() } else { None };
                order.position.advance(self.epoch, len.map_or(self.given, |len| self.given.min(len)));
                if let (Some(id), Some(accelerator)) = (self.running, &self.core.accelerator) {
                    let real = self.core.real(self.given, given.real);
                    let seen = LastBatch { is_last: given.is_last, rows: Some(given.rows), real };
                    self.core.set_last_batch(seen);
                    accelerator.inner.window.with_loaders(|loaders| loaders.give(id, seen));
                }
                Some(Ok(given.batch))
            }
            Some(Err(error)) => {
                self.leave();
                Some(Err(error))
            }
            None => {
                self.core.order.position.end(self.epoch);
                self.core.warn_left_out(self.given == 0);
                self.leave();
                None
            }
        }
    }
}

impl<B> Batches<B> {
    /// Gives the accelerator back the state of the loop around this one.
    fn leave(&mut self) {
        self.ended = true;
        if let (Some(id), Some(accelerator)) = (self.running.take(), &self.core.accelerator) {
            accelerator.inner.window.with_loaders(|loaders| loaders.end(id));
        }
    }
}

impl<B> Drop for Batches<B> {
    fn drop(&mut self) {
        self.leave();
    }
}
