//! Recorded passes: a tape knows through which models it goes, so that `backward` knows whose gradients it makes.

use std::sync::Arc;

use oarlock_tensor::ops::HeadLoss;
use oarlock_tensor::{ActivePass, Gradients, Tape, Tensor};

use super::prepared_state::PreparedState;
use crate::accelerator::handle::{Accelerator, Inner};
use crate::nn::nested::Nested;
use crate::{Error, Result};

/// A model that a tape goes through, and what prepared it.
struct Pass {
    model: Arc<PreparedState>,
    inner: Arc<Inner>,
    /// The weights that the pass saw.
    version: u64,
}

/// Puts the input of a forward pass of `state` on a tape: on the one that a part of it is on already, else on a fresh one.
/// Where the model is not trained, or evaluates an input that is on no tape, the input stays as it is. A summed loss may make its gradient in
/// the forward pass, because the tape is promised where the backward pass begins. Until the second value is dropped, ops
/// on the model's parameters are recorded on that tape whatever their inputs are.
pub(crate) fn enter<I: Nested>(
    inner: &Arc<Inner>,
    state: &Arc<PreparedState>,
    input: I,
    is_summed: bool,
) -> Result<(I, Option<ActivePass>)> {
    state.check_whole()?;
    let here = input.tensors().iter().find_map(Tensor::tape);
    // What comes from another model's pass is recorded in any mode, and so reaches these parameters.
    if !state.is_trained {
        return Ok((input, None));
    }
    let active = state.optimizer()?.engine().active_tapes();
    if !state.is_training() && here.is_none() {
        return Ok((input, Some(active.enter(None))));
    }
    let tape = match (here, is_summed) {
        (Some(tape), _) => tape,
        (None, true) => Tape::with_seed((state.optimizer()?.loss_scale() / state.declared()) as f32),
        (None, false) => Tape::new(),
    };
    let (passes, version) = (passes_of(&tape), state.version());
    let before = passes.iter().find(|pass| Arc::ptr_eq(&pass.model, state));
    if before.is_none_or(|pass| pass.version != version) {
        tape.tag(Arc::new(Pass { model: state.clone(), inner: inner.clone(), version }));
    }
    if before.is_none() {
        tape.enter_unit(state.optimizer()?.engine().pass_hook());
    }
    let input = input.map_tensors(&mut |tensor| match tensor.tape() {
        Some(_) => Ok(tensor.clone()),
        None => Ok(tape.input(tensor)),
    })?;
    Ok((input, Some(active.enter(Some(&tape)))))
}

/// The passes that a tape has recorded, the latest of each model.
fn passes_of(tape: &Tape) -> Vec<Arc<Pass>> {
    let mut passes: Vec<Arc<Pass>> = Vec::new();
    for pass in tape.tags().into_iter().filter_map(|tag| tag.downcast::<Pass>().ok()) {
        match passes.iter_mut().find(|other| Arc::ptr_eq(&other.model, &pass.model)) {
            Some(other) if other.version < pass.version => *other = pass,
            Some(_) => {}
            None => passes.push(pass),
        }
    }
    passes
}

/// A loss that a backward pass starts from.
pub trait Loss {
    /// The one number.
    fn value(&self) -> &Tensor;

    /// What a sum weighs beside others in a step: its number of targets. `None` for a mean over a micro-batch, which
    /// weighs 1.
    fn weight(&self) -> Option<f64> {
        None
    }
}

/// A mean.
impl Loss for Tensor {
    fn value(&self) -> &Tensor {
        self
    }
}

/// A sum over targets: in a step every target of all ranks weighs the same.
impl Loss for HeadLoss {
    fn value(&self) -> &Tensor {
        &self.loss
    }

    fn weight(&self) -> Option<f64> {
        Some(self.n_targets as f64)
    }
}

impl Accelerator {
    /// Runs the backward pass from a loss: a tensor of one number, the mean over a micro-batch, or a summed loss that
    /// knows its targets. Gradients add up until the optimizer steps, which takes their mean over micro-batches and
    /// ranks, or over the targets of all of them.
    ///
    /// What [`Accelerator::accumulate`] runs is a micro-batch, in which losses add up. Outside of it each call is one where
    /// accumulation steps are configured; else all until the step are one, so that gradients add up as in torch.
    ///
    /// # Errors
    /// A loss that no prepared model made, or that another accelerator's model made; what an op reports.
    pub fn backward(&self, loss: &impl Loss) -> Result<()> {
        self.backward_with_inputs(loss)?;
        Ok(())
    }

    /// As [`Accelerator::backward`], and returns the gradients of the inputs that were made with [`Tensor::with_grad`],
    /// in f16 times the loss scale.
    ///
    /// # Errors
    /// As [`Accelerator::backward`].
    pub fn backward_with_inputs(&self, loss: &impl Loss) -> Result<Gradients> {
        backward(&self.inner, loss.value(), loss.weight())
    }

    /// As [`Accelerator::backward`], from a tensor that is a sum over `n` targets. In one window either every loss is a
    /// mean or every loss is a sum.
    ///
    /// # Errors
    /// As [`Accelerator::backward`].
    pub fn backward_sum(&self, loss: &Tensor, n: usize) -> Result<()> {
        backward(&self.inner, loss, Some(n as f64))?;
        Ok(())
    }
}

/// Runs a backward pass from a mean, or from a sum that weighs `weight`.
fn backward(inner: &Arc<Inner>, loss: &Tensor, weight: Option<f64>) -> Result<Gradients> {
    backward_from(inner, loss, weight, None)
}

/// As [`backward`], with `grad` from a gradient for each element of what a part of a model has made.
pub(crate) fn backward_from(
    inner: &Arc<Inner>,
    loss: &Tensor,
    weight: Option<f64>,
    grad: Option<Tensor>,
) -> Result<Gradients> {
    if loss.n_elems() != 1 && grad.is_none() {
        return Err(Error::Usage(format!(
            "backward starts from one number, the loss, and got {}; take its mean or sum",
            loss.describe()
        )));
    }
    let tape = loss.tape().ok_or_else(|| {
        Error::Usage(
            "backward: the loss comes from no recorded forward pass; run a model that was prepared \
             with an optimizer through its prepared form, in training mode (`model.train()`)"
                .to_owned(),
        )
    })?;
    let passes = passes_of(&tape);
    if passes.is_empty() {
        return Err(Error::Usage(
            "backward: no prepared model has recorded a pass for this loss, or it was run backward already"
                .to_owned(),
        ));
    }
    if let Some(pass) = passes.iter().find(|pass| !Arc::ptr_eq(&pass.inner, inner)) {
        return Err(Error::Usage(format!(
            "backward: the loss comes from the model {}, which another accelerator prepared; call the `backward` of that one",
            pass.model.name
        )));
    }
    let scale = loss_scale(&passes)?;
    for Pass { model, version, .. } in passes.iter().map(|pass| &**pass) {
        model.check_open(weight.is_some())?;
        if *version != model.version() {
            return Err(Error::Usage(format!(
                "backward: the weights of {} have changed since the forward pass of this loss, so its gradients would be \
                 wrong; run the forward pass again, or all backward passes before `step`",
                model.name
            )));
        }
    }
    let gradients = match grad {
        Some(grad) => tape.backward_from(loss.clone(), grad)?,
        None => tape.backward(loss, (scale / declared(&passes)?) as f32)?,
    };
    let micro_batch = match inner.window.micro_batch() {
        // Whoever counts windows by hand says with the accumulation steps that each call is a micro-batch.
        0 if inner.accumulation().num_steps > 1 => inner.window.next_micro_batch(),
        number => number,
    };
    for Pass { model, .. } in passes.iter().map(|pass| &**pass) {
        model.optimizer()?.set_window_scale(scale);
        model.add(micro_batch, weight);
    }
    Ok(gradients)
}

/// The declared weight of the windows of these models, which a loss through all of them is divided by.
fn declared(passes: &[Arc<Pass>]) -> Result<f64> {
    let mut declared = passes.iter().map(|pass| (pass.model.name, pass.model.declared()));
    let Some((first, weight)) = declared.next() else { return Ok(1.0) };
    match declared.find(|(_, other)| *other != weight) {
        None => Ok(weight),
        Some((other, _)) => Err(Error::Usage(format!(
            "backward: one loss goes through {first} and {other}, whose windows were declared with different weights; call \
             `accumulation_window` for the optimizers of both with the same weight, or for none"
        ))),
    }
}

/// The scale of a loss that goes through these models. A window keeps the one that it began with, though another
/// optimizer's step may move the scale meanwhile; where none has begun it is the least of all.
fn loss_scale(passes: &[Arc<Pass>]) -> Result<f64> {
    let refused = |a: &str, b: &str, why: String| {
        Err(Error::Usage(format!("backward: one loss goes through {a} and {b}, {why}")))
    };
    let (mut of_windows, mut unscaled) = (None::<(&str, f64)>, None);
    let mut least = (passes.first().map_or("", |pass| pass.model.name), f64::INFINITY);
    for model in passes.iter().map(|pass| &pass.model) {
        let optimizer = model.optimizer()?;
        if optimizer.loss_scale_state().is_none() {
            unscaled = Some(model.name);
            continue;
        }
        if optimizer.loss_scale() < least.1 {
            least = (model.name, optimizer.loss_scale());
        }
        let Some(own) = optimizer.window_scale() else { continue };
        if let Some((other, scale)) = of_windows.replace((model.name, own))
            && scale != own
        {
            let why = format!(
                "whose gradients have the loss scales {scale} and {own} so far; end the window of one of them before, with \
                 `step` or `zero_grad`"
            );
            return refused(other, model.name, why);
        }
    }
    let (scaled, scale) = of_windows.unwrap_or(least);
    match unscaled {
        None => Ok(scale),
        Some(_) if scale.is_infinite() || scale == 1.0 => Ok(1.0),
        Some(unscaled) => {
            let why = format!("and only the first has a loss scale ({scale}); train both in one precision");
            refused(scaled, unscaled, why)
        }
    }
}
