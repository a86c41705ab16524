//! Activation checkpointing (Chen et al. 2016): a part of the model keeps only its input, and the backward pass runs
//! the part again to get its activations.

use std::cell::RefCell;
use std::sync::Arc;

use oarlock_kernels::{Error, Result};

use crate::active::{ActivePass, ActiveTapes};
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
    record(input, trains, forward, Keeps::InputAndOutput)
}

/// As [`checkpoint`], where the input waits in pinned memory of the host if the device is a GPU. It comes back while the
/// backward pass is at the ops behind it.
///
/// # Errors
/// As [`checkpoint`]; no memory that can be pinned.
pub fn offloaded_checkpoint(input: &Tensor, trains: bool, forward: Arc<Forward>) -> Result<Tensor> {
    record(input, trains, forward, Keeps::InputAway)
}

/// As [`checkpoint`], where the tape does not keep the output either: an op that needs it in its backward pass has
/// `forward` run again, which then serves the backward pass of both. For an output that only the next ops use, such as
/// a linear layer's input; where an op far later needs it, the activations are there from that op's backward pass on.
///
/// # Errors
/// As [`checkpoint`].
pub fn checkpoint_without_output(input: &Tensor, trains: bool, forward: Arc<Forward>) -> Result<Tensor> {
    record(input, trains, forward, Keeps::Input)
}

/// What the tape keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    InputAndOutput,
    Input,
    InputAway,
}

fn record(input: &Tensor, trains: bool, forward: Arc<Forward>, keeps: Keeps) -> Result<Tensor> {
    let Some(recorder) = Recorder::new(&[input], &[])?.map(|recorder| recorder.or_trains(trains)) else {
        return forward(input);
    };
    let active = recorder.tape().active();
    // Before the forward pass, which the copy then overlaps.
    let saved = match keeps {
        Keeps::InputAway => recorder.save_away(input)?,
        Keeps::InputAndOutput | Keeps::Input => recorder.save(input),
    };
    let output = {
        let _unrecorded = enter(&active, None);
        forward(&input.detach())?
    };
    if output.var.is_some() {
        return Err(Error::Usage(
            "checkpoint: its forward pass takes a tensor of the tape beside its input; detach that tensor, or make it \
             inside"
                .to_string(),
        ));
    }
    Ok(Recorder::record(Some(recorder), output, |recorder| Checkpoint {
        input: saved,
        needs_input: recorder.needs_input(0),
        forward,
        active,
        gives_output: keeps == Keeps::Input,
        again: RefCell::default(),
    }))
}

/// From now on ops on the parameters of these models are recorded on `tape` or nowhere, whatever their inputs are.
fn enter(active: &[Arc<ActiveTapes>], tape: Option<&Tape>) -> Vec<ActivePass> {
    active.iter().map(|active| active.enter(tape)).collect()
}

struct Checkpoint {
    input: Saved,
    needs_input: bool,
    forward: Arc<Forward>,
    /// The models whose passes record it.
    active: Vec<Arc<ActiveTapes>>,
    gives_output: bool,
    /// The second run, where its output was needed before the backward pass came here.
    again: RefCell<Option<Recomputation>>,
}

struct Recomputation {
    tape: Tape,
    input: Tensor,
    output: Tensor,
}

impl Checkpoint {
    fn run(&self, cx: &mut Backward<'_>) -> Result<Recomputation> {
        let tape = Tape::new();
        let input = cx.get(&self.input)?;
        if let Saved::Offloaded(_) = self.input {
            cx.fetch_ahead()?;
        }
        let input = if self.needs_input { tape.leaf(&input) } else { tape.input(&input) };
        let _recorded = enter(&self.active, Some(&tape));
        let output = input.device().profile().time_recomputing(|| (self.forward)(&input))?;
        Ok(Recomputation { tape, input, output })
    }
}

impl Function for Checkpoint {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let again = self.again.take();
        let Recomputation { tape, input, output } = again.map_or_else(|| self.run(cx), Ok)?;
        if !output.var.as_ref().is_some_and(|var| var.needs_grad()) {
            // Nothing in it is trained, and the input has no part in the output.
            return Ok(());
        }
        if !self.needs_input {
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

    fn can_replay(&self) -> bool {
        self.gives_output
    }

    fn fetch_ahead(&self) -> Result<bool> {
        match &self.input {
            Saved::Offloaded(away) => away.begin().map(|()| true),
            _ => Ok(false),
        }
    }

    fn replay(&self, cx: &mut Backward<'_>) -> Result<Tensor> {
        let again = self.run(cx)?;
        let output = again.output.detach();
        self.again.replace(Some(again));
        Ok(output)
    }
}
