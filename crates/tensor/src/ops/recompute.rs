//! Activation checkpointing (Chen et al. 2016): a part of the model keeps only its input, and the backward pass runs
//! the part again to get its activations.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::tape::{Backward, Function, Recorder, Saved, Tape};
use crate::tensor::Tensor;

type Forward = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync;

/// `forward` of `input`, with the gradients that it would have without this op, bit by bit. `trains` says whether it
/// uses a parameter that is trained. It must do the same each time it is called, and may take no tensor of the tape but
/// its input.
///
/// # Errors
/// When `forward` takes another tensor of the tape, and whatever it reports.
pub fn checkpoint(input: &Tensor, trains: bool, forward: Arc<Forward>) -> Result<Tensor> {
    let recorder = Recorder::new(&[input], &[])?.map(|recorder| recorder.or_trains(trains));
    let output = forward(&input.detach())?;
    if output.var.is_some() {
        return Err(Error::Usage(
            "checkpoint: its forward pass takes a tensor of the tape beside its input; detach that tensor, or make it \
             inside"
                .to_string(),
        ));
    }
    Ok(Recorder::record(recorder, output, |recorder| Checkpoint { input: recorder.save(input), forward }))
}

struct Checkpoint {
    input: Saved,
    forward: Arc<Forward>,
}

impl Function for Checkpoint {
    fn backward(self: Box<Self>, mut grads: Vec<Option<Tensor>>, cx: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = grads[0].take() else { return Ok(()) };
        let input = cx.get(&self.input)?;
        let tape = Tape::new();
        let input = if cx.needs(0) { tape.leaf(&input) } else { tape.input(&input) };
        let output = input.device().profile().time_recomputing(|| (self.forward)(&input))?;
        if !output.var.as_ref().is_some_and(|var| var.needs_grad()) {
            // Nothing in it is trained, and the input has no part in the output.
            return Ok(());
        }
        if !cx.needs(0) {
            tape.backward_from(output, dy)?;
            return Ok(());
        }
        // What the input's gradient is so far is added to here, in the order in which the outer tape would have done.
        tape.begin_sum(&input, cx.take(0))?;
        let gradients = tape.backward_from(output, dy)?;
        let sum = gradients.of(&input).cloned();
        // The sum has one owner again, so that it can be added to in place.
        drop(gradients);
        sum.map_or(Ok(()), |sum| cx.give(0, sum))
    }
}
