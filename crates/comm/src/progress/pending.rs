//! A collective that runs beside its caller: what the caller waits for.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::worker::Waiters;
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
    pub waiters: Arc<Waiters>,
}

impl Pending for Background {
    fn wait(self: Box<Self>) -> Result<()> {
        let begin = Instant::now();
        let mut result = self.outcome.result.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = result.is_none();
        if waits {
            result = self.waiters.during(|| {
                let over = self.outcome.changed.wait_while(result, |result| result.is_none());
                over.unwrap_or_else(PoisonError::into_inner)
            });
        }
        self.observer.taken_up(waits);
        if waits {
            self.observer.waited(begin);
        }
        result.clone().unwrap_or(Ok(()))
    }
}
