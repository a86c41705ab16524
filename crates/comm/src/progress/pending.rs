//! A collective that runs beside its caller: what the caller waits for.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::worker::Queue;
use crate::error::Result;
use crate::observer::Observer;
use crate::ready::Pending;

/// How a collective ends.
#[derive(Default)]
pub(super) struct Outcome {
    result: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl Outcome {
    pub fn set(&self, result: Result<()>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.changed.notify_all();
    }
}

/// The wait for it.
pub(super) struct Background {
    pub outcome: Arc<Outcome>,
    pub observer: Arc<Observer>,
    pub queue: Arc<Queue>,
}

impl Pending for Background {
    fn wait(self: Box<Self>) -> Result<()> {
        let begin = Instant::now();
        let is_set = || self.outcome.result.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        // A thread that would only wait runs what has not begun.
        let waited = !is_set();
        self.queue.help(|| !is_set());
        let mut result = self.outcome.result.lock().unwrap_or_else(PoisonError::into_inner);
        if result.is_none() {
            result = self.queue.waiters().during(|| {
                let over = self.outcome.changed.wait_while(result, |result| result.is_none());
                over.unwrap_or_else(PoisonError::into_inner)
            });
        }
        self.observer.taken_up(waited);
        if waited {
            self.observer.waited(begin);
        }
        result.clone().unwrap_or(Ok(()))
    }
}
