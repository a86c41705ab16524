//! The loss of each next token as a run configures it: plain or smoothed cross-entropy, DFT or EAFT, with or without noise
//! on the embeddings (NEFTune).

use std::ops::Range;

use oarlock_tensor::Tensor;
use oarlock_tensor::cpu::random::Stream;
use oarlock_tensor::ops::{IGNORE_INDEX, NoisePart, uniform_noise};

use super::{Document, Inputs, Mean, Objective, ObjectiveLoss, Sum};
use crate::accelerator::{PartOutput, Prepared};
use crate::config::TokenLossArgs;
use crate::data::Batch;
use crate::error::Result;
use crate::model::{Decoder, LossOptions};
use crate::nn;

/// Separates the noise from the random numbers of others with the same seed.
const STREAM: u64 = 0x4e1f_70bb_21c9_65d3;

/// The next token of every position that has a label; every target weighs the same.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NextToken {
    /// The loss of a token.
    pub args: TokenLossArgs,
    /// Seed of the noise.
    pub seed: u64,
}

impl NextToken {
    /// The noise on the embeddings of a micro-batch that is trained on. An example of L tokens has
    /// `±alpha / √(L · hidden_size)`, as in the paper. It depends on the seed and on the place of the example in the order
    /// of the training alone, so it is the same however a step is split, and after a checkpoint.
    fn noise(&self, model: &Decoder, inputs: &Inputs) -> nn::Result<Option<Tensor>> {
        let Some(alpha) = self.args.neftune_alpha.filter(|_| inputs.ids.tape().is_some()) else {
            return Ok(None);
        };
        let hidden = model.config().hidden_size;
        let part = |document: &Document| NoisePart {
            stream: Stream { seed: self.seed ^ STREAM, stream: document.position },
            first: (document.first * hidden) as u64,
            elems: document.tokens.start * hidden..document.tokens.end * hidden,
            magnitude: (alpha / ((document.tokens.len() * hidden) as f64).sqrt()) as f32,
        };
        let parts = inputs.documents.iter().map(part).collect();
        let &[rows, len] = inputs.ids.sizes() else { return Ok(None) };
        Ok(Some(uniform_noise([rows, len, hidden], parts, inputs.ids.device())?))
    }
}

impl Objective for NextToken {
    type Model = Decoder;

    fn weight(&self, batch: &Batch) -> f64 {
        batch.n_targets as f64
    }

    fn loss(&self, model: &Decoder, inputs: &Inputs) -> nn::Result<ObjectiveLoss> {
        let noise = self.noise(model, inputs)?;
        let options = LossOptions { kind: self.args.kind, noise: noise.as_ref() };
        Ok(model.loss_with(&inputs.ids, &inputs.labels, &inputs.mask, &options)?.into())
    }

    fn eval_forward(&self, model: &Prepared<Decoder>, inputs: &Inputs) -> Result<ObjectiveLoss> {
        if !self.args.accuracy {
            return self.forward(model, inputs);
        }
        let options = LossOptions { kind: self.args.kind, noise: None };
        model.call(&inputs.ids, |model: &Decoder, ids: &Tensor| {
            let (loss, hits) = model.loss_and_hits(ids, &inputs.labels, &inputs.mask, &options)?;
            let mut loss = ObjectiveLoss::from(loss);
            loss.metrics.push(accuracy(inputs, &hits)?);
            Ok(loss)
        })
    }

    fn part(
        &self,
        model: &Decoder,
        inputs: &Inputs,
        units: Range<usize>,
        x: &Tensor,
        evaluates: bool,
    ) -> nn::Result<PartOutput<ObjectiveLoss>> {
        let noise = match units.start {
            0 => self.noise(model, &Inputs { ids: x.clone(), ..inputs.clone() })?,
            _ => None,
        };
        let is_last = units.end == model.n_units();
        let x = model.stream_through(units, x, &inputs.mask, noise.as_ref())?;
        if !is_last {
            return Ok(PartOutput::Activations(x));
        }
        if !(evaluates && self.args.accuracy) {
            return Ok(PartOutput::Loss(model.loss_of_stream(&x, &inputs.labels, self.args.kind)?.into()));
        }
        let (loss, hits) = model.loss_and_hits_of_stream(&x, &inputs.labels, self.args.kind)?;
        let mut loss = ObjectiveLoss::from(loss);
        loss.metrics.push(accuracy(inputs, &hits)?);
        Ok(PartOutput::Loss(loss))
    }

    fn eval_metrics(&self) -> &'static [&'static str] {
        if self.args.accuracy { &["accuracy"] } else { &[] }
    }

    fn is_head_loss(&self) -> bool {
        true
    }
}

/// The share of the targets of each example that are the likeliest tokens; every example weighs the same.
fn accuracy(inputs: &Inputs, hits: &Tensor) -> nn::Result<Mean> {
    let (hits, labels) = (hits.to_vec::<f32>()?, inputs.labels.ids());
    let (mut sum, mut weight) = (0.0, 0.0);
    for Document { tokens, .. } in &inputs.documents {
        let n_targets = labels[tokens.clone()].iter().filter(|&&label| label != IGNORE_INDEX).count();
        if n_targets > 0 {
            sum += hits[tokens.clone()].iter().sum::<f32>() / n_targets as f32;
            weight += 1.0;
        }
    }
    Ok(Mean { sum: Sum::Tensor(Tensor::from_slice(&[sum], [1], inputs.ids.device())?), weight })
}
