//! Windows of micro-batches through a model that is divided into the stages of a pipeline.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use oarlock_tensor::{DType, Tape, Tensor};

use super::passes::{self, Loss};
use super::prepared::Prepared;
use crate::accelerator::handle::Accelerator;
use crate::nn::{self, Module};
use crate::parallel::pipeline::schedule::{Passes, Place};
use crate::parallel::pipeline::{Pipeline, Work};
use crate::{Error, Result};

/// What a part of a model makes of its input.
pub enum PartOutput<L> {
    /// The input of the next part.
    Activations(Tensor),
    /// The loss, in the last part.
    Loss(L),
}

/// Runs units of a model on a micro-batch, given by its number, from an input.
pub type PartForward<'a, M, L> =
    dyn FnMut(&M, Range<usize>, usize, &Tensor) -> nn::Result<PartOutput<L>> + 'a;

/// What a window of micro-batches does in each part of a model.
pub struct PartPasses<'a, M, L> {
    /// What the losses of each micro-batch weigh.
    pub weights: &'a [f64],
    /// The input of the first part for a micro-batch.
    pub input: &'a dyn Fn(usize) -> Result<Tensor>,
    /// Runs units of the model on a micro-batch, from the output of the part before or from the input.
    pub forward: &'a mut PartForward<'a, M, L>,
    /// Whether the loss is a sum that makes its first gradient in the forward pass, as
    /// [`Prepared::loss`](crate::Prepared::loss) says.
    pub is_head_loss: bool,
}

impl<M: Module> Prepared<M> {
    /// The pipeline whose stages hold the model, where it is divided into any.
    pub fn pipeline(&self) -> Option<&Arc<Pipeline>> {
        self.state.pipeline.get()
    }
}

impl Accelerator {
    /// Runs the forward and backward passes of a window of micro-batches through the stages of a model, or in evaluation mode
    /// the forward passes. The losses come back on the last stage, in the order of micro-batches; elsewhere there are none.
    /// All ranks call it, after [`Accelerator::accumulation_window`]: losses are sums.
    ///
    /// # Errors
    /// A model without stages, a number of micro-batches that the schedule does not take, a failed rank.
    pub fn pipeline_window<M: Module, L: Loss>(
        &self,
        model: &Prepared<M>,
        passes: PartPasses<'_, M, L>,
    ) -> Result<Vec<L>> {
        let pipeline = model.pipeline().ok_or_else(|| {
            Error::Usage(format!(
                "pipeline_window: {} is not divided into stages; configure `pipeline` in the AcceleratorConfig",
                model.state.name
            ))
        })?;
        let (trains, n_micro) = (model.is_training(), passes.weights.len());
        let mut window = Window {
            accelerator: self,
            model,
            pipeline,
            passes,
            trains,
            slots: HashMap::new(),
            losses: Vec::new(),
        };
        let kind = if trains { Passes::Training } else { Passes::Forward };
        pipeline.run(kind, n_micro, &mut window)?;
        let mut losses = window.losses;
        losses.sort_by_key(|(micro_batch, _)| *micro_batch);
        Ok(losses.into_iter().map(|(_, loss)| loss).collect())
    }
}

struct Window<'a, 'p, M, L> {
    accelerator: &'a Accelerator,
    model: &'a Prepared<M>,
    pipeline: &'a Pipeline,
    passes: PartPasses<'p, M, L>,
    trains: bool,
    /// Passes in flight, by their buffers.
    slots: HashMap<usize, Slot<L>>,
    losses: Vec<(usize, L)>,
}

/// A forward pass that waits for its backward pass.
struct Slot<L> {
    /// What was received, where anything was.
    leaf: Option<Tensor>,
    output: PartOutput<L>,
}

impl<M: Module, L: Loss> Work for Window<'_, '_, M, L> {
    fn forward(&mut self, place: Place, x: Option<Tensor>) -> Result<Option<Tensor>> {
        let (state, inner) = (&self.model.state, &self.accelerator.inner);
        let is_last = self.pipeline.is_last(place.chunk);
        let tape = match (self.trains, is_last && self.passes.is_head_loss) {
            (false, _) => None,
            (true, false) => Some(Tape::new()),
            (true, true) => {
                Some(Tape::with_seed((state.optimizer()?.loss_scale() / state.declared()) as f32))
            }
        };
        let (x, leaf) = match (x, &tape) {
            (Some(x), Some(tape)) => {
                let leaf = tape.leaf(&x);
                (leaf.clone(), Some(leaf))
            }
            (Some(x), None) => (x, None),
            (None, tape) => {
                let x = inner.placed(&(self.passes.input)(place.micro_batch)?)?;
                (tape.as_ref().map_or_else(|| x.clone(), |tape| tape.input(&x)), None)
            }
        };
        let (x, _pass) = passes::enter(inner, state, x, false)?;
        nn::begin_pass(&**self.model.module());
        let units = self.pipeline.units(place.chunk);
        let output = (self.passes.forward)(self.model.module(), units, place.micro_batch, &x)?;
        let sent = match (&output, is_last) {
            (PartOutput::Activations(x), false) => Some(x.detach()),
            (PartOutput::Loss(_), true) => None,
            _ => {
                return Err(Error::Usage(format!(
                    "the parts of {}: the last one gives a loss, and the others give activations",
                    state.name
                )));
            }
        };
        match (self.trains, output) {
            (true, output) => drop(self.slots.insert(place.buffer, Slot { leaf, output })),
            (false, PartOutput::Loss(loss)) => self.losses.push((place.micro_batch, loss)),
            (false, PartOutput::Activations(_)) => {}
        }
        Ok(sent)
    }

    fn backward(&mut self, place: Place, grad: Option<Tensor>) -> Result<Option<Tensor>> {
        let slot = self.slots.remove(&place.buffer);
        let Some(Slot { leaf, output }) = slot else {
            return Err(Error::Usage(format!("a backward pass without its forward pass: {place:?}")));
        };
        // A micro-batch counts once on each rank, with the last part of the model there.
        let is_counted = place.chunk + 1 == self.pipeline.n_chunks();
        let weight =
            self.passes.weights.get(place.micro_batch).copied().filter(|_| is_counted).unwrap_or(0.0);
        let (state, inner) = (&self.model.state, &self.accelerator.inner);
        let gradients = match (output, grad) {
            (PartOutput::Loss(loss), _) => {
                let gradients = passes::backward_from(inner, loss.value(), Some(weight), None)?;
                self.losses.push((place.micro_batch, loss));
                Some(gradients)
            }
            (PartOutput::Activations(x), Some(grad))
                if leaf.is_some() || self.pipeline.trains(place.chunk) =>
            {
                Some(passes::backward_from(inner, &x, Some(weight), Some(grad))?)
            }
            // Nothing up to here is trained.
            (PartOutput::Activations(_), _) => {
                state.add(place.micro_batch as u64 + 1, Some(weight));
                None
            }
        };
        let Some(leaf) = leaf else { return Ok(None) };
        match gradients.as_ref().and_then(|gradients| gradients.of(&leaf)) {
            Some(grad) => Ok(Some(grad.clone())),
            None => Ok(Some(Tensor::zeros(leaf.sizes(), DType::F32, leaf.device())?)),
        }
    }
}
