//! The tapes on which a model's forward passes are being recorded: where an op goes that uses one of its parameters, and
//! whose inputs are on no tape.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::tape::Tape;

/// The forward passes of a model that are under way. The home of its parameters knows it, and so their ops are recorded
/// whatever their inputs are: positions that the forward pass makes itself, a detached tensor.
#[derive(Default)]
pub struct ActiveTapes(Mutex<Vec<(ThreadId, Option<Tape>)>>);

/// A forward pass that is under way, until it is dropped.
#[must_use = "the pass ends when this is dropped"]
pub struct ActivePass {
    tapes: Arc<ActiveTapes>,
    thread: ThreadId,
}

impl ActiveTapes {
    /// Begins a forward pass of this thread, recorded on `tape` or nowhere.
    pub fn enter(self: &Arc<Self>, tape: Option<&Tape>) -> ActivePass {
        if let Some(tape) = tape {
            tape.keep_active(self);
        }
        let thread = thread::current().id();
        self.passes().push((thread, tape.cloned()));
        ActivePass { tapes: self.clone(), thread }
    }

    /// The tape of the pass that this thread began last.
    pub fn current(&self) -> Option<Tape> {
        let thread = thread::current().id();
        let passes = self.passes();
        let (_, tape) = passes.iter().rfind(|(other, _)| *other == thread)?;
        tape.clone()
    }

    fn passes(&self) -> MutexGuard<'_, Vec<(ThreadId, Option<Tape>)>> {
        // Each change leaves a whole list behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ActivePass {
    fn drop(&mut self) {
        let mut passes = self.tapes.passes();
        if let Some(index) = passes.iter().rposition(|(thread, _)| *thread == self.thread) {
            passes.remove(index);
        }
    }
}
