//! An objective on a dry device, for forecasts of memory and work.

use std::cell::RefCell;
use std::ops::Range;

use oarlock_engine::Result;
use oarlock_tensor::ops::{Labels, Mask};
use oarlock_tensor::{DType, Device, Tape, Tensor};

use super::definition::Objective;
use super::inputs::Inputs;
use super::language_model::LanguageModel;
use crate::data::{CHOSEN, Field, REJECTED};
use crate::estimate::Pass;
use crate::model::Decoder;

/// What an objective does with a micro-batch: its forward pass, and the backward pass where it trains.
pub fn dry_pass(objective: &dyn Objective) -> impl Fn(&Decoder, &Device, Pass) -> Result<()> {
    // A step reads its sums at its end, so that one waits while the next micro-batch runs.
    let waiting = RefCell::new(None);
    move |model, device, pass| {
        let tensor = |len: usize| Tensor::zeros([pass.rows, len], DType::I32, device);
        // The tokens of a rank that has a part of each row; attention knows the documents of whole rows.
        let own = pass.len.div_ceil(pass.parts);
        let (n_tokens, n) = (pass.rows * own, pass.rows * pass.segments);
        // Every token has a label.
        let (ids, labels) = (tensor(own)?, Labels::new(vec![0; n_tokens]));
        let mask = if pass.documents { Mask::Documents(tensor(own * pass.parts)?) } else { Mask::Causal };
        let mut inputs = Inputs::of_tensors(ids, labels, mask);
        let span = |i: usize| -> Range<usize> { i * n_tokens / n..(i + 1) * n_tokens / n };
        for (first, field) in [CHOSEN, REJECTED].into_iter().enumerate() {
            inputs.fields.set(field, Field::Spans((first..n).step_by(2).map(span).collect()));
        }
        if !pass.trains {
            waiting.replace(None);
            objective.loss(model, &inputs)?;
            return Ok(());
        }
        inputs.noise = objective.noise(LanguageModel::hidden_size(model), &inputs)?;
        let tape = if objective.is_token_loss() { Tape::with_seed(1.0) } else { Tape::new() };
        let loss = objective.loss(model, &Inputs { ids: tape.input(&inputs.ids), ..inputs })?;
        tape.backward(&loss.loss, 1.0)?;
        waiting.replace(Some(loss.sum));
        Ok(())
    }
}
