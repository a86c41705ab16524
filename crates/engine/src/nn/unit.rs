//! Units: the parts of a model whose parameters move together. One word on a field makes a module a unit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oarlock_tensor::{Param, Result, Tape, Tensor, ops};

use super::leaf::{Leaf, each_leaf};
use super::module::{Forward, Module, Visitor};
use super::nested::Nested;
use super::scope::in_scope;
use super::training::RngSnapshot;
use super::unit_run::UnitRun;

/// A module that is a unit.
#[derive(Debug)]
pub struct Unit<M> {
    module: Arc<M>,
    run: UnitRun,
}

impl<M> Unit<M> {
    /// Makes a module a unit.
    pub fn new(module: M) -> Unit<M> {
        Unit { module: Arc::new(module), run: UnitRun::default() }
    }

    /// The module itself. What runs on it directly is not this unit's: its weights may be elsewhere.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// The module itself, to change it before the model is prepared; `None` while somebody else holds it.
    pub fn module_mut(&mut self) -> Option<&mut M> {
        Arc::get_mut(&mut self.module)
    }

    /// How it runs.
    pub fn unit_run(&self) -> &UnitRun {
        &self.run
    }

    /// The module's forward pass as this unit's.
    ///
    /// # Errors
    /// What the module reports.
    pub fn forward<I: Nested>(&self, input: &I) -> Result<M::Output>
    where
        M: Module + Forward<I>,
    {
        self.run(input, |module| module.forward(input))
    }

    /// Runs the unit's forward pass on an input: the ops recorded by `forward` are marked as this unit's.
    ///
    /// # Errors
    /// Whatever `forward` reports.
    pub fn run<R>(&self, input: &impl Nested, forward: impl FnOnce(&M) -> Result<R>) -> Result<R>
    where
        M: Module,
    {
        let tensors = input.tensors();
        let tape = || tensors.iter().find_map(|tensor| tensor.tape());
        // With the gathering of its weights.
        match tensors.first() {
            Some(first) => in_scope(self, first.device(), || self.run_hooked(tape, forward)),
            None => self.run_hooked(tape, forward),
        }
    }

    fn run_hooked<R>(
        &self,
        tape: impl FnOnce() -> Option<Tape>,
        forward: impl FnOnce(&M) -> Result<R>,
    ) -> Result<R> {
        let Some(hook) = self.run.0.hook.get() else { return forward(&self.module) };
        let tape = tape().or_else(|| hook.active_tape());
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

    /// As [`Unit::run`], for a forward pass from one tensor to another that can be run again: with recomputation, it is
    /// one op of the unit, which keeps nothing but `x` and runs `forward` again in its backward pass. Where a wrap policy
    /// has made units of the parts inside instead of this one, activations are kept: a part's weights come and go with
    /// its own pass.
    ///
    /// # Errors
    /// Whatever `forward` reports.
    pub fn call(
        &self,
        x: &Tensor,
        forward: impl Fn(&M, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Tensor>
    where
        M: Module + Send + Sync + 'static,
    {
        if !self.run.0.recompute.load(Ordering::Relaxed) || holds_attached(&*self.module) {
            return self.run(x, |module| forward(module, x));
        }
        let (again, moment) = (self.module.clone(), RngSnapshot::of(&*self.module));
        let forward = move |x: &Tensor| moment.again(|| forward(&again, x));
        let active = || self.run.0.hook.get().and_then(|hook| hook.active_tape());
        let x = match x.tape().map_or_else(active, |_| None) {
            Some(tape) => &tape.input(x),
            None => x,
        };
        let checkpoint = match self.run.0.offload.load(Ordering::Relaxed) {
            true => ops::offloaded_checkpoint,
            false => ops::checkpoint,
        };
        self.run(x, |module| checkpoint(x, is_trained(module)?, Arc::new(forward)))
    }
}

/// Whether a parameter of the module is trained.
///
/// # Errors
/// A parameter without a home.
pub fn is_trained(module: &dyn Module) -> Result<bool> {
    let mut trained = Ok(false);
    each_leaf(module, &mut |_, _, leaf| {
        if let (Leaf::Param(param), Ok(false)) = (leaf, &trained) {
            trained = param.trainable();
        }
    });
    trained
}

/// Whether an engine is attached to a unit inside of a module.
fn holds_attached(module: &dyn Module) -> bool {
    let mut attached = Attached(false);
    module.visit(&mut attached);
    attached.0
}

struct Attached(bool);

impl Visitor for Attached {
    fn param(&mut self, _name: &str, _param: &Param) {}

    fn child(&mut self, _name: &str, child: &dyn Module) {
        child.visit(self);
    }

    fn unit(&mut self, unit: &UnitRun, inside: &dyn Module) {
        self.0 |= unit.0.hook.get().is_some();
        inside.visit(self);
    }
}

impl<M: Module + Forward<I>, I: Nested> Forward<I> for Unit<M> {
    type Output = M::Output;
    fn forward(&self, input: &I) -> Result<M::Output> {
        self.forward(input)
    }
}

impl<M: Module> Module for Unit<M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.unit(&self.run, &*self.module);
    }

    fn kind(&self) -> &'static str {
        self.module.kind()
    }
}
