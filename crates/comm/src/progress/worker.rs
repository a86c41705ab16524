//! The thread of a group, and the queue of the collectives that it runs.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, Result};

/// One collective with everything that it needs. It does not panic.
pub(super) type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Whether this thread runs collectives for another one.
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs collectives beside one that computes, and should leave it the cores (invariant 6).
#[cfg(feature = "mpi")]
pub(crate) fn runs_here() -> bool {
    HERE.get()
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    is_busy: bool,
    ends: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// Signalled when a job comes, when one is done, and at the end.
    changed: Condvar,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        HERE.set(true);
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.is_busy = true;
                drop(state);
                job();
                state = self.state();
                state.is_busy = false;
                self.changed.notify_all();
            } else if state.ends {
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
        let mut state = self.queue.state();
        while !state.jobs.is_empty() || state.is_busy {
            state = self.queue.wait(state);
        }
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

    /// Invariants 1 and 5.
    #[test]
    fn jobs_run_in_order_and_the_end_waits_for_them() {
        let worker = Worker::default();
        let (told, heard) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        worker.push(Box::new(move || gate.recv().unwrap())).unwrap();
        for job in 0..20 {
            let told = told.clone();
            worker.push(Box::new(move || told.send((job, HERE.get())).unwrap())).unwrap();
        }
        assert!(!worker.is_idle());
        assert!(heard.try_recv().is_err(), "the first job is not over");
        open.send(()).unwrap();
        worker.wait_until_idle();
        assert!(worker.is_idle());
        let told_later = told.clone();
        worker.push(Box::new(move || told_later.send((20, HERE.get())).unwrap())).unwrap();
        drop((worker, told));
        assert_eq!(heard.iter().collect::<Vec<_>>(), (0..21).map(|job| (job, true)).collect::<Vec<_>>());
        assert!(!HERE.get());
    }
}
