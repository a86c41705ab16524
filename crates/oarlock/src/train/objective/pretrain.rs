//! Pretraining: the cross-entropy of each next token, summed; every target weighs the same.

use std::ops::Range;

use oarlock_tensor::Tensor;
use oarlock_tensor::ops::TokenLoss;

use super::{Inputs, Objective, ObjectiveLoss};
use crate::accelerator::PartOutput;
use crate::data::Batch;
use crate::model::Decoder;
use crate::nn;

/// The next token of every position that has a label.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pretrain;

impl Objective for Pretrain {
    type Model = Decoder;

    fn weight(&self, batch: &Batch) -> f64 {
        batch.n_targets as f64
    }

    fn loss(&self, model: &Decoder, inputs: &Inputs) -> nn::Result<ObjectiveLoss> {
        Ok(model.loss(&inputs.ids, &inputs.labels, &inputs.mask)?.into())
    }

    fn part(
        &self,
        model: &Decoder,
        inputs: &Inputs,
        units: Range<usize>,
        x: &Tensor,
        _evaluates: bool,
    ) -> nn::Result<PartOutput<ObjectiveLoss>> {
        let is_last = units.end == model.n_units();
        let x = model.stream_through(units, x, &inputs.mask, None)?;
        match is_last {
            true => Ok(PartOutput::Loss(
                model.loss_of_stream(&x, &inputs.labels, TokenLoss::CrossEntropy)?.into(),
            )),
            false => Ok(PartOutput::Activations(x)),
        }
    }

    fn is_head_loss(&self) -> bool {
        true
    }
}
