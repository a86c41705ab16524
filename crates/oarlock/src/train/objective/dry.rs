//! An objective on a dry device, for forecasts of memory and work.

use std::cell::RefCell;

use oarlock_tensor::ops::{Labels, Mask};
use oarlock_tensor::{DType, Device, Tape, Tensor};

use super::{Inputs, Objective};
use crate::error::Result;
use crate::estimate::Pass;

/// What an objective does with a micro-batch: its forward pass, and the backward pass where it trains.
pub fn dry_pass<O: Objective>(objective: &O) -> impl Fn(&O::Model, &Device, Pass) -> Result<()> {
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
        let segments = (0..n).map(|i| i * n_tokens / n..(i + 1) * n_tokens / n).collect();
        let inputs = Inputs { ids, labels, mask, segments, documents: Vec::new() };
        if !pass.trains {
            waiting.replace(None);
            objective.loss(model, &inputs)?;
            return Ok(());
        }
        let tape = if objective.is_head_loss() { Tape::with_seed(1.0) } else { Tape::new() };
        let loss = objective.loss(model, &Inputs { ids: tape.input(&inputs.ids), ..inputs })?;
        tape.backward(&loss.loss, 1.0)?;
        waiting.replace(Some(loss.sum));
        Ok(())
    }
}
