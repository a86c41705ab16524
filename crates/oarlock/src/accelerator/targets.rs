//! A step whose micro-batches know their targets before the first of them: what the trainer's own loop uses, so that
//! the head makes its gradient in the forward pass and every token weighs the same.

use std::sync::Arc;

use oarlock_comm::Scalar;
use oarlock_tensor::ops::{HeadLoss, Mask};
use oarlock_tensor::{Tape, Tensor, UnitHook};

use super::Accelerator;
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::nn::Module;
use crate::shard::{Engine, WeightSource};
use crate::train::{Optimizer, OptimizerConfig};

/// An accumulation window: the micro-batches of one optimizer step, over all ranks.
#[derive(Clone)]
pub struct Accumulation {
    n_targets: u64,
    loss_scale: f64,
    /// Called when a backward pass is over.
    after: Arc<dyn UnitHook>,
}

impl Accelerator {
    /// Gives the model's parameters their memory, fills them from `source`, and returns the optimizer over them.
    /// All ranks call it with the same model.
    ///
    /// # Errors
    /// No memory, or what the source reports.
    pub fn hold(
        &self,
        model: &dyn Module,
        optimizer: OptimizerConfig,
        source: &mut dyn WeightSource,
    ) -> Result<Optimizer> {
        let mut engine = Engine::new(
            model,
            &self.comm,
            &self.device,
            self.options.clone(),
            optimizer.rule,
            &OptimizerConfig::param_group,
            &OptimizerConfig::role,
        )?;
        engine.initialize(source)?;
        Ok(Optimizer::new(engine, optimizer.param_groups(0.0), optimizer.loss_scale))
    }

    /// Begins an accumulation window: the ranks agree on the number of targets of the whole step, so that every token
    /// weighs the same however the step is divided over micro-batches and ranks.
    ///
    /// # Errors
    /// When a rank failed, or the step has no target at all.
    pub fn accumulate_targets(&self, optimizer: &Optimizer, n_targets: usize) -> Result<Accumulation> {
        let mut total = [n_targets as f64];
        self.comm.all_reduce_f64(&mut total, Scalar::Sum)?;
        if total[0] == 0.0 {
            return Err(Error::Usage(
                "a step without a single target: all its labels are ignored".to_string(),
            ));
        }
        Ok(Accumulation {
            n_targets: total[0] as u64,
            loss_scale: optimizer.loss_scale(),
            after: optimizer.engine().pass_hook(),
        })
    }

    /// The tensors of a micro-batch: ids, labels, and which positions see which.
    ///
    /// # Errors
    /// No memory, or a batch whose parts do not fit.
    pub fn place(&self, batch: &Batch) -> Result<(Tensor, Tensor, Mask)> {
        let shape = [batch.rows, batch.len];
        let ids = Tensor::from_slice(&batch.input_ids, shape, &self.device)?;
        let labels = Tensor::from_slice(&batch.labels, shape, &self.device)?;
        let mask = match &batch.doc_start {
            Some(starts) => Mask::Documents(Tensor::from_slice(starts, shape, &self.device)?),
            None => Mask::Causal,
        };
        Ok((ids, labels, mask))
    }
}

impl Accumulation {
    /// The targets of the whole step, over all micro-batches and ranks.
    pub fn n_targets(&self) -> u64 {
        self.n_targets
    }

    /// Puts the input of a micro-batch on a fresh tape whose loss will be divided by the targets of the whole step.
    pub fn input(&self, ids: &Tensor) -> Tensor {
        let tape = Tape::with_seed((self.loss_scale / self.n_targets as f64) as f32);
        tape.enter_unit(self.after.clone());
        tape.input(ids)
    }

    /// Runs the backward pass of one micro-batch; the gradients add up in the parameters' homes.
    ///
    /// # Errors
    /// When the loss is on no tape, or an op fails.
    pub fn backward(&self, loss: &HeadLoss) -> Result<()> {
        let tape = loss.loss.tape().ok_or_else(|| {
            Error::Usage(
                "backward: the loss is on no tape; give the model `accumulation.input(&ids)`".to_string(),
            )
        })?;
        let seed = tape.seed().ok_or_else(|| {
            Error::Usage("backward: the tape has no seed; it must come from Accumulation::input".to_string())
        })?;
        tape.backward(&loss.loss, seed)?;
        Ok(())
    }
}
