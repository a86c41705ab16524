//! What checkpoints of a loop keep besides models, where they go, and the hooks around them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::hooks::Hooks;
use super::stateful::Stateful;
use crate::checkpoint::Stores;

/// A part of a loop, and what it is.
pub(crate) type Part = (&'static str, Arc<dyn Stateful>);

/// What an accelerator knows of the checkpoints of its loop; `H` is a hook.
pub(crate) struct Saved<H: ?Sized> {
    state: Mutex<State>,
    pub before_save: Hooks<H>,
    pub before_load: Hooks<H>,
}

struct State {
    parts: Vec<Part>,
    /// The number of the next checkpoint of the project.
    iteration: u64,
    /// Who sees which output folder, where that is not one for all.
    stores: Option<Stores>,
}

impl<H: ?Sized> Saved<H> {
    pub fn new(iteration: u64) -> Saved<H> {
        let state = Mutex::new(State { parts: Vec::new(), iteration, stores: None });
        Saved { state, before_save: Hooks::default(), before_load: Hooks::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parts that checkpoints keep, in the order in which they came.
    pub fn parts(&self) -> Vec<Part> {
        self.state().parts.clone()
    }

    /// Has checkpoints keep it.
    pub fn add_part(&self, what: &'static str, part: Arc<dyn Stateful>) {
        self.state().parts.push((what, part));
    }

    /// Takes all parts out.
    pub fn take_parts(&self) -> Vec<Part> {
        std::mem::take(&mut self.state().parts)
    }

    pub fn iteration(&self) -> u64 {
        self.state().iteration
    }

    pub fn set_iteration(&self, iteration: u64) {
        self.state().iteration = iteration;
    }

    pub fn stores(&self) -> Option<Stores> {
        self.state().stores.clone()
    }

    pub fn set_stores(&self, stores: Stores) {
        self.state().stores = Some(stores);
    }
}
