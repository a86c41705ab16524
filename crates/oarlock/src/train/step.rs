//! The story of a training step: a window of micro-batches becomes one update of the weights, the same on every rank.

use oarlock_tensor::Tensor;
use oarlock_tensor::ops::{HeadLoss, Mask};

use crate::accelerator::Accelerator;
use crate::data::{Batch, StepBatches};
use crate::error::Result;
use crate::model::Decoder;
use crate::report::speed::{Phase, PhaseTimer};
use crate::train::{Optimizer, Stepped};

/// What a step did.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The loss summed over the targets of all ranks.
    pub loss_sum: f64,
    /// Those targets.
    pub n_targets: u64,
    /// The norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Whether the weights were updated.
    pub stepped: Stepped,
}

impl StepReport {
    /// The mean loss of a target.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.n_targets as f64
    }
}

/// One step: forward and backward for each micro-batch of this rank, gradients summed over the ranks and clipped,
/// weights updated with the learning rate `lr`.
///
/// # Errors
/// A failed rank, a gradient that is not finite, a token that the model does not know.
pub fn train_step(
    accelerator: &Accelerator,
    model: &Decoder,
    optimizer: &mut Optimizer,
    window: &StepBatches,
    lr: f64,
    max_grad_norm: f64,
    timer: &mut PhaseTimer,
) -> Result<StepReport> {
    let step = optimizer.n_steps() + 1;
    let phase = |what: &str| accelerator.communicator().set_phase(&format!("step {step}: {what}"));

    // All ranks agree on the targets of the whole step, so that each loss is scaled once and every token weighs the same.
    timer.enter(Phase::Data);
    phase("waiting for the other ranks");
    let accumulation =
        accelerator.accumulate_targets(optimizer, window.batches.iter().map(|b| b.n_targets).sum())?;

    // Gradients add up in the units' flat buffers, micro-batch by micro-batch.
    phase("forward and backward");
    let mut loss_sum = 0.0;
    for batch in &window.batches {
        timer.enter(Phase::Forward);
        let (ids, labels, mask) = accelerator.place(batch)?;
        let loss = model.loss(&accumulation.input(&ids), &labels, &mask)?;
        loss_sum += loss.sum()?;
        timer.enter(Phase::Backward);
        accumulation.backward(&loss)?;
    }

    // Each rank sums what it owns over all ranks; the norm is a sum over fixed blocks, so all ranks get the same bits.
    timer.enter(Phase::Reduce);
    phase("reducing gradients");
    optimizer.engine_mut().reduce_grads()?;
    timer.enter(Phase::Clip);
    let grad_norm = optimizer.clip_grad_norm(max_grad_norm)?;

    // One fused pass over the owned slice: master weights, moments, new working copy; then all see the new weights.
    timer.enter(Phase::Optimizer);
    phase("optimizer");
    let stepped = optimizer.step(lr)?;

    timer.enter(Phase::Other);
    let mut sums = [loss_sum];
    accelerator.reduce_sum(&mut sums)?;
    Ok(StepReport { loss_sum: sums[0], n_targets: accumulation.n_targets(), grad_norm, stepped })
}

/// The summed loss and the targets of all ranks over `batches`, without gradients.
///
/// # Errors
/// As [`train_step`].
pub fn evaluate(
    accelerator: &Accelerator,
    model: &Decoder,
    batches: impl Iterator<Item = Batch>,
) -> Result<(f64, u64)> {
    let mut sums = [0.0, 0.0];
    for batch in batches {
        let loss = loss_of(accelerator, model, &batch)?;
        sums[0] += loss.sum()?;
        sums[1] += loss.n_targets() as f64;
    }
    accelerator.reduce_sum(&mut sums)?;
    Ok((sums[0], sums[1] as u64))
}

fn loss_of(accelerator: &Accelerator, model: &Decoder, batch: &Batch) -> Result<HeadLoss> {
    let (ids, labels, mask): (Tensor, Tensor, Mask) = accelerator.place(batch)?;
    Ok(model.loss(&ids, &labels, &mask)?)
}
