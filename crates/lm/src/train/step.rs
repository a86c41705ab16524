//! The story of a training step: a window of micro-batches becomes one update of the weights, the same on every rank.
//!
//! It is written on the public [`Accelerator`] alone, as a custom training loop is; `examples/pretrain_loop.rs` is the
//! same story without objectives and timers.
//!
//! What moves between the ranks, and when:
//!
//! ```text
//!                        DDP        ZeRO-1     ZeRO-2     ZeRO-3
//! forward   of a unit    -          -          -          gather before, release after
//! backward  of a unit    -          -          reduce     gather before, reduce, release after
//! reduce    of all units reduce     reduce     (done)     (done)
//! optimizer              all update own slice  own slice  own slice
//!           after it     -          gather     gather     -
//! ```
//!
//! Where ranks do not share memory, what moves does so while units compute: a gather begins a unit ahead, and a reduction is
//! waited for a unit later, or in `reduce`, where DDP and ZeRO-1 have begun theirs in the last backward pass. What is gathered
//! after the optimizer is waited for by the units of the next step (`shard/publish.rs`).
//!
//! The gathers and releases of ZeRO-3 and the early reductions of ZeRO-2 happen inside of `forward` and `backward`: each
//! unit of the model calls its engine there (`nn/unit.rs`, then `shard/passes.rs`).

use oarlock_engine::optim::Stepped;
use oarlock_engine::report::speed::{Phase, PhaseTimer};
use oarlock_engine::{Accelerator, Error, Prepared, PreparedOptimizer, Result};

use crate::data::Batch;
use crate::train::objective::{Evaluation, LanguageModel, Objective, Totals};
use crate::train::passes::Passes;

/// What a step did.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Loss and metrics over the micro-batches of all ranks.
    pub totals: Totals,
    /// The norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Whether the weights were updated.
    pub stepped: Stepped,
}

impl StepReport {
    /// The mean loss of a target.
    pub fn loss(&self) -> f64 {
        self.totals.loss()
    }
}

/// One step: forward and backward for each micro-batch of this rank, gradients summed over the ranks and clipped to the
/// norm `max_grad_norm` (0: not at all), weights updated. A scheduler moves on afterward.
///
/// # Errors
/// A failed rank, a gradient that is not finite, a token that the model does not know.
pub fn train_step<M: LanguageModel>(
    accelerator: &Accelerator,
    objective: &dyn Objective,
    model: &Prepared<M>,
    optimizer: &PreparedOptimizer,
    batches: &[Batch],
    max_grad_norm: f64,
    timer: &mut PhaseTimer,
) -> Result<StepReport> {
    let step = optimizer.n_steps()? + 1;
    let phase = |what: &str| accelerator.communicator().set_phase(&format!("step {step}: {what}"));

    // All ranks agree on what the losses of the whole step weigh, so that each is scaled once and every target counts alike.
    timer.enter(Phase::Data);
    phase("waiting for the other ranks");
    let own_weight = batches.iter().map(|batch| objective.weight(batch)).sum();
    let weight = accelerator.accumulation_window(optimizer, own_weight)?;

    // Gradients add up in the flat buffers of the units, micro-batch by micro-batch.
    phase("forward and backward");
    let tally = Passes { accelerator, objective, model }.train(batches, optimizer, timer)?;

    // Each rank sums what it owns over all ranks; the norm is a sum over fixed blocks, so all ranks get bitwise identical
    // results.
    timer.enter(Phase::Reduce);
    phase("reducing gradients");
    optimizer.reduce_gradients()?;
    timer.enter(Phase::Clip);
    let grad_norm = accelerator.clip_grad_norm(optimizer, max_grad_norm)?;

    // The losses are read only now, so that no micro-batch waits for its own; and not behind the new weights.
    timer.enter(Phase::Other);
    let totals = tally.over_ranks(accelerator, objective.metrics(false), Some(weight))?;

    // One fused pass over the owned slice: master weights, moments, new working copy; then all see the new weights.
    timer.enter(Phase::Optimizer);
    phase("optimizer");
    let stepped = optimizer.step()?;
    timer.enter(Phase::Other);
    // Where a gradient is not finite it is named by the step; a loss may be odd all the same.
    if totals.weight > 0.0 && !totals.loss().is_finite() && !matches!(stepped, Some(Stepped::Skipped { .. }))
    {
        return Err(Error::Model(format!(
            "step {step}: the loss is {}; lower the learning rate, or look at the records of this step",
            totals.loss()
        )));
    }
    objective.after_step(&totals);
    Ok(StepReport {
        totals,
        grad_norm: grad_norm.unwrap_or_default(),
        stepped: stepped.unwrap_or(Stepped::Done),
    })
}

/// Loss and metrics of all ranks over `batches`, without gradients. The model is in evaluation mode meanwhile.
///
/// # Errors
/// As [`train_step`].
pub fn evaluate<M: LanguageModel>(
    accelerator: &Accelerator,
    objective: &dyn Objective,
    model: &Prepared<M>,
    batches: impl Iterator<Item = Batch>,
) -> Result<Evaluation> {
    let trains = model.is_training();
    model.eval();
    let mut rows = Vec::new();
    let batches = batches.inspect(|batch| rows.push(batch.samples.len()));
    let tally = Passes { accelerator, objective, model }.evaluate(batches);
    if trains {
        model.train();
    }
    let tally = tally?;
    let totals = tally.over_ranks(accelerator, objective.metrics(true), None)?;
    Ok(Evaluation { loss: tally.mean_of_batches(accelerator, &rows)?, totals })
}
