//! Threads that make batches ahead of the loop, and hand them over in order.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::plan::{EpochPlan, Planned};
use crate::report::panics;
use crate::{Error, Result};

/// A batch of a rank.
pub(super) struct RankBatch<B> {
    pub rank: usize,
    pub rows: usize,
    pub real: Option<usize>,
    /// Whether it is the rank's last; whoever looks one batch ahead says so.
    pub is_last: bool,
    pub batch: B,
}

/// The batches of a plan, in its order; nothing follows an error.
pub(super) enum Prefetch<B> {
    /// Made when they are asked for.
    Here(Option<EpochPlan<B>>),
    /// Made by threads, which end with this value.
    Threads { shared: Arc<Shared<B>>, threads: Vec<JoinHandle<()>> },
}

/// What the threads share.
pub(super) struct Shared<B> {
    /// One thread at a time reads on in the plan; its number is that of the next batch.
    plan: Mutex<(usize, Option<EpochPlan<B>>)>,
    made: Mutex<Queue<B>>,
    changed: Condvar,
    /// Batches that may be under way or wait.
    depth: usize,
}

struct Queue<B> {
    /// By their numbers; `None` is the end.
    waiting: BTreeMap<usize, Option<Result<RankBatch<B>>>>,
    /// The number of the batch that the loop takes next.
    next: usize,
    /// Nobody takes any more.
    closed: bool,
}

impl<B: Send + 'static> Prefetch<B> {
    /// Begins; without workers the loop makes each batch itself.
    pub fn start(plan: EpochPlan<B>, n_workers: usize, depth: usize) -> Result<Prefetch<B>> {
        if n_workers == 0 {
            return Ok(Prefetch::Here(Some(plan)));
        }
        let queue = Queue { waiting: BTreeMap::new(), next: 0, closed: false };
        let shared = Arc::new(Shared {
            plan: Mutex::new((0, Some(plan))),
            made: Mutex::new(queue),
            changed: Condvar::new(),
            depth: depth.max(1),
        });
        let mut prefetch = Prefetch::Threads { shared: shared.clone(), threads: Vec::new() };
        for worker in 0..n_workers {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("loader-{worker}"));
            let thread = thread.spawn(move || while shared.work() {}).map_err(|cause| {
                Error::Usage(format!(
                    "the loader cannot start worker {worker} of {n_workers}: {cause}; lower num_workers"
                ))
            })?;
            // Should a later one not start, those that did end with `prefetch`.
            if let Prefetch::Threads { threads, .. } = &mut prefetch {
                threads.push(thread);
            }
        }
        Ok(prefetch)
    }

    /// The next batch.
    pub fn next(&mut self) -> Option<Result<RankBatch<B>>> {
        match self {
            Prefetch::Here(plan) => {
                let made = plan.as_mut()?.next().map(|planned| planned.and_then(make));
                if !matches!(made, Some(Ok(_))) {
                    *plan = None;
                }
                made
            }
            Prefetch::Threads { shared, .. } => shared.take(),
        }
    }
}

impl<B> Drop for Prefetch<B> {
    fn drop(&mut self) {
        if let Prefetch::Threads { shared, threads } = self {
            shared.queue().closed = true;
            shared.changed.notify_all();
            for thread in threads.drain(..) {
                // A panic of a worker was caught and reported where its batch stood.
                let _ = thread.join();
            }
        }
    }
}

fn make<B>(planned: Planned<B>) -> Result<RankBatch<B>> {
    let Planned { rank, rows, real, job } = planned;
    Ok(RankBatch { rank, rows, real, is_last: false, batch: job()? })
}

impl<B> Shared<B> {
    fn queue(&self) -> MutexGuard<'_, Queue<B>> {
        // Nothing that panics runs under it.
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one batch; false when there is none left to make.
    fn work(&self) -> bool {
        let (number, planned) = {
            let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
            let number = plan.0;
            let mut queue = self.queue();
            while !queue.closed && number >= queue.next.saturating_add(self.depth) {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if queue.closed {
                return false;
            }
            drop(queue);
            let Some(left) = &mut plan.1 else { return false };
            let planned = caught(|| left.next().transpose()).transpose();
            if !matches!(planned, Some(Ok(_))) {
                plan.1 = None;
            }
            plan.0 += 1;
            (number, planned)
        };
        let made = planned.map(|planned| planned.and_then(|planned| caught(|| make(planned))));
        self.queue().waiting.insert(number, made);
        self.changed.notify_all();
        true
    }

    fn take(&self) -> Option<Result<RankBatch<B>>> {
        let mut queue = self.queue();
        let number = queue.next;
        loop {
            if queue.closed {
                return None;
            }
            if let Some(made) = queue.waiting.remove(&number) {
                queue.next += 1;
                queue.closed = !matches!(made, Some(Ok(_)));
                self.changed.notify_all();
                return made;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Runs code of the user; its panic becomes an error.
fn caught<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    // What was being made is dropped, and nothing is asked of the plan again.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        Err(Error::Usage(format!("a worker of the loader panicked: {}", panics::message(&*panic))))
    })
}
