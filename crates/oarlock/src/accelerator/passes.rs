//! Passes on their way: which models a tape goes through, so that `backward` knows whose gradients it makes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_tensor::ops::HeadLoss;
use oarlock_tensor::{Tape, Tensor, WeakTape};

use super::held::Held;
use crate::error::{Error, Result};
use crate::nested::Nested;

/// The passes that have been begun and not yet run backward.
#[derive(Default)]
pub(super) struct Passes(Mutex<Vec<Pass>>);

struct Pass {
    tape: WeakTape,
    models: Vec<Arc<Held>>,
}

impl Passes {
    /// Puts the input of a forward pass of `held` on a tape: on the one that a part of it is on already, else on a fresh
    /// one. Where the model is not training, or is not trained, the input stays as it is. A summed loss may make its
    /// gradient in the forward pass, because the tape is promised where the backward pass begins.
    pub fn enter<I: Nested>(&self, held: &Arc<Held>, input: I, is_summed: bool) -> Result<I> {
        if !held.is_training() || !held.is_trained {
            return Ok(input);
        }
        let mut passes = self.lock();
        passes.retain(|pass| !pass.tape.is_gone());
        let here = input.tensors().iter().find_map(Tensor::tape);
        let tape = match (here, is_summed) {
            (Some(tape), _) => tape,
            (None, true) => Tape::with_seed(held.optimizer()?.loss_scale() as f32),
            (None, false) => Tape::new(),
        };
        match passes.iter_mut().find(|pass| pass.tape.is(&tape)) {
            Some(pass) if pass.models.iter().any(|model| Arc::ptr_eq(model, held)) => {}
            Some(pass) => {
                tape.enter_unit(held.optimizer()?.engine().pass_hook());
                pass.models.push(held.clone());
            }
            None => {
                tape.enter_unit(held.optimizer()?.engine().pass_hook());
                passes.push(Pass { tape: tape.downgrade(), models: vec![held.clone()] });
            }
        }
        input.map_tensors(&mut |tensor| match tensor.tape() {
            Some(_) => Ok(tensor.clone()),
            None => Ok(tape.input(tensor)),
        })
    }

    /// Takes the pass of a tape out: the models whose gradients its backward pass makes.
    pub fn leave(&self, tape: &Tape) -> Option<Vec<Arc<Held>>> {
        let mut passes = self.lock();
        let index = passes.iter().position(|pass| pass.tape.is(tape))?;
        Some(passes.swap_remove(index).models)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pass>> {
        // Each change leaves whole entries behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A loss that a backward pass starts from.
pub trait Loss {
    /// The one number.
    fn value(&self) -> &Tensor;

    /// What it weighs beside others in a step: 1 for a mean over a micro-batch, the number of targets for a sum.
    fn weight(&self) -> f64;
}

/// A mean.
impl Loss for Tensor {
    fn value(&self) -> &Tensor {
        self
    }

    fn weight(&self) -> f64 {
        1.0
    }
}

/// A sum over targets: in a step every target of all ranks weighs the same.
impl Loss for HeadLoss {
    fn value(&self) -> &Tensor {
        &self.loss
    }

    fn weight(&self) -> f64 {
        self.n_targets as f64
    }
}

/// Runs a backward pass from a loss that weighs `weight`.
pub(super) fn backward(passes: &Passes, loss: &Tensor, weight: f64) -> Result<()> {
    if loss.n_elems() != 1 {
        return Err(Error::Usage(format!(
            "backward starts from one number, the loss, and got {loss:?}; take its mean or sum"
        )));
    }
    let tape = loss.tape().ok_or_else(|| {
        Error::Usage(
            "backward: the loss comes from no recorded forward pass; run a model that was prepared \
             with an optimizer through its prepared form, in training mode (`model.train()`)"
                .to_owned(),
        )
    })?;
    let models = passes.leave(&tape).ok_or_else(|| {
        Error::Usage(
            "backward: this accelerator recorded no pass for this loss; it was run backward already, or it comes from \
             a model that another accelerator prepared, whose backward it needs"
                .to_owned(),
        )
    })?;
    let mut scale = None;
    for model in &models {
        model.check_open()?;
        let own = model.optimizer()?.loss_scale();
        if let Some((name, scale)) = scale.replace((model.name, own))
            && scale != own
        {
            return Err(Error::Usage(format!(
                "backward: one loss goes through {name} and {}, whose loss scales are {scale} and {own}",
                model.name
            )));
        }
    }
    let scale = scale.map_or(1.0, |(_, scale)| scale);
    tape.backward(loss, scale as f32)?;
    models.iter().for_each(|model| model.add(weight));
    Ok(())
}
