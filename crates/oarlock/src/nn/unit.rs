//! Units: the parts of a model whose parameters move together. One word on a field makes a module a unit.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use oarlock_tensor::{Result, Tensor, UnitHook};

use crate::nn::{Module, Visitor};

/// A module that is a unit.
#[derive(Debug)]
pub struct Unit<M> {
    module: M,
    run: UnitRun,
}

/// Where an engine attaches itself to a unit; empty until the model is prepared.
#[derive(Clone, Default)]
pub struct UnitRun(Arc<OnceLock<Arc<dyn UnitHook>>>);

impl UnitRun {
    /// Attaches the engine. A unit belongs to one engine for its whole life.
    ///
    /// # Errors
    /// Gives the hook back when the unit has one already.
    pub fn attach(&self, hook: Arc<dyn UnitHook>) -> std::result::Result<(), Arc<dyn UnitHook>> {
        self.0.set(hook)
    }
}

impl std::fmt::Debug for UnitRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.get().is_some() { "UnitRun(attached)" } else { "UnitRun" })
    }
}

impl<M> Unit<M> {
    /// Makes a module a unit.
    pub fn new(module: M) -> Unit<M> {
        Unit { module, run: UnitRun::default() }
    }

    /// Runs the unit's forward pass on an input: the ops recorded by `forward` are marked as this unit's.
    ///
    /// # Errors
    /// Whatever `forward` reports.
    pub fn run<R>(&self, input: &Tensor, forward: impl FnOnce(&M) -> Result<R>) -> Result<R> {
        let Some(hook) = self.run.0.get() else { return forward(&self.module) };
        let tape = input.tape();
        hook.before_forward(tape.is_some())?;
        if let Some(tape) = &tape {
            tape.enter_unit(hook.clone());
        }
        let result = forward(&self.module)?;
        if let Some(tape) = &tape {
            tape.leave_unit(hook.clone());
        }
        hook.after_forward(tape.is_some())?;
        Ok(result)
    }
}

impl<M> Deref for Unit<M> {
    type Target = M;
    fn deref(&self) -> &M {
        &self.module
    }
}

impl<M: Module> Module for Unit<M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.unit(&self.run, &self.module);
    }
}
