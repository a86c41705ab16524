//! How a unit runs, and where an engine attaches itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use oarlock_tensor::UnitHook;

/// How a unit runs: where an engine attaches itself, empty until the model is prepared, and whether the backward pass
/// computes the unit's activations again instead of keeping them.
#[derive(Clone, Default)]
pub struct UnitRun(pub(super) Arc<State>);

#[derive(Default)]
pub(super) struct State {
    pub hook: OnceLock<Arc<dyn UnitHook>>,
    pub recompute: AtomicBool,
    /// Whether what recomputation keeps waits in main memory.
    pub offload: AtomicBool,
}

impl UnitRun {
    /// Attaches the engine. A unit belongs to one engine for its whole life.
    ///
    /// # Errors
    /// Gives the hook back when the unit has one already.
    pub fn attach(&self, hook: Arc<dyn UnitHook>) -> std::result::Result<(), Arc<dyn UnitHook>> {
        self.0.hook.set(hook)
    }

    /// Says whether forward passes from now on keep only the unit's input, where they go through [`Unit::call`](crate::nn::Unit::call).
    pub fn set_recompute(&self, recompute: bool) {
        self.0.recompute.store(recompute, Ordering::Relaxed);
    }

    /// Says whether the input that is kept then waits in main memory while a GPU does not need it.
    pub fn set_offload(&self, offload: bool) {
        self.0.offload.store(offload, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for UnitRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.hook.get().is_some() { "UnitRun(attached)" } else { "UnitRun" })
    }
}
