//! Rewards: a number for each answer that is larger for the better one of a pair (Bradley and Terry 1952). Every pair
//! weighs the same.

use oarlock_engine::{Result, nn};
use oarlock_tensor::{DType, Tensor, ops};

use super::answers::mean_of;
use super::definition::Objective;
use super::inputs::Inputs;
use super::language_model::{LanguageModel, Unrecorded};
use super::metric::{ObjectiveLoss, Sum};
use crate::data::{Batch, CHOSEN, REJECTED};

/// The loss of a model with a value head: of pairs, -ln σ(score of the chosen - score of the rejected answer). The score
/// is the value at the last token of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reward;

impl Objective for Reward {
    fn weight(&self, batch: &Batch) -> f64 {
        batch.fields.spans(REJECTED).len() as f64
    }

    fn loss(&self, model: &dyn LanguageModel, inputs: &Inputs) -> nn::Result<ObjectiveLoss> {
        let (n, values) = (inputs.fields.spans(REJECTED).len(), values(model, inputs)?);
        let half = values.shape().n_elems() / 2;
        let chosen: Tensor = ops::narrow(&values, 0, 0..half)?;
        let rejected = ops::narrow(&values, 0, half..2 * half)?;
        let loss = chosen.sub(&rejected)?.logsigmoid()?.neg()?.sum_all()?;
        let loss = if n == 0 { loss.scale(0.0)? } else { loss };
        let is_right = chosen.detach().gt(&rejected.detach())?.cast(DType::F32)?;
        let metrics = vec![mean_of(&is_right, n)?];
        Ok(ObjectiveLoss { sum: Sum::from(&loss), loss, weight: n as f64, metrics })
    }

    fn metrics(&self, _evaluates: bool) -> &'static [&'static str] {
        &["accuracy"]
    }
}

/// The scores of the chosen and the rejected answer of each pair of a micro-batch, by a model with a value head.
///
/// # Errors
/// What the model reports.
pub fn scores(model: &dyn Unrecorded, inputs: &Inputs) -> Result<Vec<[f32; 2]>> {
    let n = inputs.fields.spans(REJECTED).len();
    let values = model.unrecorded(inputs, &values)?.to_vec::<f32>()?;
    Ok((0..n).map(|pair| [values[pair], values[n + pair]]).collect())
}

/// The values at the last tokens of the chosen answers, and then of the rejected ones.
fn values(model: &dyn LanguageModel, inputs: &Inputs) -> nn::Result<Tensor> {
    let spans = [CHOSEN, REJECTED].into_iter().flat_map(|field| inputs.fields.spans(field));
    let mut places: Vec<usize> = spans.map(|span| span.end.saturating_sub(1)).collect();
    if places.is_empty() {
        // A rank without a pair takes part all the same, and what comes of it counts nothing.
        places = vec![0, 0];
    }
    model.values(inputs, &places)
}
