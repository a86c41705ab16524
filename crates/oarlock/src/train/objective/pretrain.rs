//! Pretraining: the cross-entropy of each next token, summed; every target weighs the same.

use super::{Inputs, Objective, ObjectiveLoss};
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

    fn is_head_loss(&self) -> bool {
        true
    }
}
