//! The thread of a group, and the queue of the collectives that it runs.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, Result};

/// One collective with everything that it needs. It does not panic.
pub(super) type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Who waits for the collectives that this thread runs, if it is such a thread.
    static WAITERS: RefCell<Option<Arc<Waiters>>> = const { RefCell::new(None) };
}

/// Whether the calling thread runs collectives beside one that computes, and should leave it the cores (invariant 7).
pub(crate) fn runs_beside_computation() -> bool {
    WAITERS.with_borrow(|waiters| waiters.as_ref().is_some_and(|waiters| waiters.0.load(Relaxed) == 0))
}

/// How many threads have nothing to do but wait for the collectives of a group.
#[derive(Default)]
pub(super) struct Waiters(AtomicU32);

impl Waiters {
    /// Runs a wait.
    pub fn during<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Relaxed);
        let result = wait();
        self.0.fetch_sub(1, Relaxed);
        result
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    is_busy: bool,
    ends: bool,
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Signalled when a job comes, when one is done, and at the end.
    changed: Condvar,
    waiters: Arc<Waiters>,
}

impl Queue {
    /// Who waits for what it runs.
    pub fn waiters(&self) -> &Arc<Waiters> {
        &self.waiters
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs jobs on this thread, one after the other, as long as no other thread runs one and `goes_on`.
    pub fn help(&self, goes_on: impl Fn() -> bool) {
        let mut state = self.state();
        while goes_on()
            && !state.is_busy
            && let Some(job) = state.jobs.pop_front()
        {
            state = self.run_one(state, job);
        }
    }

    /// Runs a job, while no other thread does.
    fn run_one<'a>(&'a self, mut state: MutexGuard<'a, State>, job: Job) -> MutexGuard<'a, State> {
        state.is_busy = true;
        drop(state);
        job();
        let mut state = self.state();
        state.is_busy = false;
        self.changed.notify_all();
        state
    }

    fn run(&self) {
        WAITERS.set(Some(self.waiters.clone()));
        let mut state = self.state();
        loop {
            // Who waits for a job may run it.
            if !state.is_busy
                && let Some(job) = state.jobs.pop_front()
            {
                state = self.run_one(state, job);
            } else if state.ends && state.jobs.is_empty() {
                return;
            } else {
                state = self.wait(state);
            }
        }
    }
}

/// A thread that runs jobs in their order; started with the first.
#[derive(Default)]
pub(super) struct Worker {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    /// Puts a job behind the others.
    pub fn push(&self, job: Job) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let queue = self.queue.clone();
            let started = std::thread::Builder::new()
                .name("collectives".into())
                .spawn(move || queue.run())
                .map_err(|error| Error::system("start a thread for collectives", error))?;
            *thread = Some(started);
        }
        self.queue.state().jobs.push_back(job);
        self.queue.changed.notify_all();
        Ok(())
    }

    /// Whether nothing is queued or runs.
    pub fn is_idle(&self) -> bool {
        let state = self.queue.state();
        state.jobs.is_empty() && !state.is_busy
    }

    /// Waits until nothing is queued or runs.
    pub fn wait_until_idle(&self) {
        self.queue.help(|| true);
        self.waiters().during(|| {
            let mut state = self.queue.state();
            while !state.jobs.is_empty() || state.is_busy {
                state = self.queue.wait(state);
            }
        });
    }

    /// Its jobs, and who waits for them.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Who waits for what it runs.
    fn waiters(&self) -> &Arc<Waiters> {
        self.queue.waiters()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.queue.state().ends = true;
        self.queue.changed.notify_all();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Jobs do not panic.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Invariants 1, 5 and 7.
    #[test]
    fn jobs_run_in_order_and_the_end_waits_for_them() {
        let worker = Worker::default();
        let (message, heard) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        let told_first = message.clone();
        let first = move || {
            gate.recv().unwrap();
            told_first.send((0, runs_beside_computation())).unwrap();
        };
        worker.push(Box::new(first)).unwrap();
        for job in 1..20 {
            let message = message.clone();
            worker.push(Box::new(move || message.send((job, true)).unwrap())).unwrap();
        }
        assert!(!worker.is_idle());
        assert!(heard.try_recv().is_err(), "the first job is not over");
        open.send(()).unwrap();
        let order: Vec<_> = heard.iter().take(20).collect();
        assert_eq!(order, (0..20).map(|job| (job, true)).collect::<Vec<_>>());
        worker.wait_until_idle();
        assert!(worker.is_idle());
        worker.queue().waiters().during(|| {
            let message = message.clone();
            worker.push(Box::new(move || message.send((20, runs_beside_computation())).unwrap())).unwrap();
            assert_eq!(heard.recv().unwrap(), (20, false), "somebody waits");
        });
        let told_last = message.clone();
        worker.push(Box::new(move || told_last.send((21, true)).unwrap())).unwrap();
        drop((worker, message));
        assert_eq!(heard.iter().collect::<Vec<_>>(), [(21, true)]);
        assert!(!runs_beside_computation(), "this thread computes itself");
    }
}
