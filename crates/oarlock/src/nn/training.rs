//! Training and evaluation: what a layer that behaves differently in the two, such as dropout, looks at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::nn::{Module, UnitRun, Visitor};
use oarlock_tensor::Param;

/// Whether a layer trains, and the number of the forward pass. A layer holds one and shows it with [`Visitor::mode`].
#[derive(Clone, Debug, Default)]
pub struct Mode(Arc<State>);

#[derive(Debug, Default)]
struct State {
    training: AtomicBool,
    pass: AtomicU64,
}

impl Mode {
    /// Whether the model is in training mode.
    pub fn is_training(&self) -> bool {
        self.0.training.load(Relaxed)
    }

    /// The number of the forward pass, from 1.
    pub fn pass(&self) -> u64 {
        self.0.pass.load(Relaxed)
    }
}

/// Puts all layers of a model into training or evaluation mode.
pub fn set_training(model: &dyn Module, training: bool) {
    model.visit(&mut Modes(&|mode| mode.0.training.store(training, Relaxed)));
}

/// Tells all layers of a model that a forward pass begins.
pub(crate) fn begin_pass(model: &dyn Module) {
    model.visit(&mut Modes(&|mode| {
        mode.0.pass.fetch_add(1, Relaxed);
    }));
}

/// The forward passes that the layers of a model have been told of; 0 where none asks.
pub fn n_passes(model: &dyn Module) -> u64 {
    let most = AtomicU64::new(0);
    model.visit(&mut Modes(&|mode| {
        most.fetch_max(mode.pass(), Relaxed);
    }));
    most.into_inner()
}

/// Has the layers of a model go on as after so many forward passes: a run that is resumed drops what it would have
/// dropped.
pub fn set_passes(model: &dyn Module, passes: u64) {
    model.visit(&mut Modes(&|mode| mode.0.pass.store(passes, Relaxed)));
}

struct Modes<'a>(&'a dyn Fn(&Mode));

impl Visitor for Modes<'_> {
    fn param(&mut self, _name: &str, _param: &Param) {}

    fn child(&mut self, _name: &str, child: &dyn Module) {
        child.visit(self);
    }

    fn unit(&mut self, _unit: &UnitRun, inside: &dyn Module) {
        inside.visit(self);
    }

    fn mode(&mut self, mode: &Mode) {
        (self.0)(mode);
    }
}
