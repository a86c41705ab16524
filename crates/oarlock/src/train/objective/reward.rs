//! Rewards: a number for each answer that is larger for the better one of a pair (Bradley and Terry 1952). Every pair
//! weighs the same.

use oarlock_tensor::{DType, Tensor, ops};

use super::answers::mean_of;
use super::{Inputs, Objective, ObjectiveLoss, Sum};
use crate::accelerator::Prepared;
use crate::data::Batch;
use crate::error::Result;
use crate::model::Decoder;
use crate::nn;

/// The loss of a model with a value head: of pairs, -ln σ(score of the better - score of the worse answer). The score is
/// the value at the last token of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reward;

impl Objective for Reward {
    type Model = Decoder;

    fn weight(&self, batch: &Batch) -> f64 {
        (batch.segments.len() / 2) as f64
    }

    fn loss(&self, model: &Decoder, inputs: &Inputs) -> nn::Result<ObjectiveLoss> {
        let (n, values) = (inputs.segments.len() / 2, values(model, &inputs.ids, inputs)?);
        let half = values.shape().n_elems() / 2;
        let chosen: Tensor = ops::narrow(&values, 0, 0..half)?;
        let rejected = ops::narrow(&values, 0, half..2 * half)?;
        let loss = chosen.sub(&rejected)?.logsigmoid()?.neg()?.sum_all()?;
        let loss = if n == 0 { loss.scale(0.0)? } else { loss };
        let is_right = chosen.detach().gt(&rejected.detach())?.cast(DType::F32)?;
        let metrics = vec![mean_of(&is_right, n)?];
        Ok(ObjectiveLoss { sum: Sum::from(&loss), loss, weight: n as f64, metrics })
    }

    fn metrics(&self) -> &'static [&'static str] {
        &["accuracy"]
    }

    fn scores(&self, model: &Prepared<Decoder>, inputs: &Inputs) -> Result<Vec<[f32; 2]>> {
        let n = inputs.segments.len() / 2;
        let values = model.call(&inputs.ids, |model, ids| values(model, ids, inputs))?.to_vec::<f32>()?;
        Ok((0..n).map(|pair| [values[pair], values[n + pair]]).collect())
    }
}

/// The values at the last tokens of the better answers, and then of the worse ones.
fn values(model: &Decoder, ids: &Tensor, inputs: &Inputs) -> nn::Result<Tensor> {
    let last = |first: usize| {
        inputs.segments.iter().skip(first).step_by(2).map(|segment| segment.end.saturating_sub(1))
    };
    let mut places: Vec<usize> = last(0).chain(last(1)).collect();
    if places.is_empty() {
        // A rank without a pair takes part all the same, and what comes of it counts nothing.
        places = vec![0, 0];
    }
    model.values(ids, &inputs.mask, &places)
}
