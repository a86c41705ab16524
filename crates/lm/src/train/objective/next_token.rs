//! The loss of each next token as a run configures it: plain or smoothed cross-entropy, DFT or EAFT, with or without noise
//! on the embeddings (NEFTune).

use oarlock_config::config::TokenLossArgs;
use oarlock_engine::nn;
use oarlock_tensor::Tensor;
use oarlock_tensor::cpu::random::Stream;
use oarlock_tensor::ops::{IGNORE_INDEX, NoisePart, TokenLoss, uniform_noise};

use super::definition::Objective;
use super::inputs::{Document, Inputs};
use super::language_model::LanguageModel;
use super::metric::{Mean, ObjectiveLoss, Sum};
use crate::data::Batch;

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
    /// Cross-entropy, as in pretraining.
    pub const PLAIN: NextToken = NextToken {
        args: TokenLossArgs { kind: TokenLoss::CrossEntropy, neftune_alpha: None, accuracy: false },
        seed: 0,
    };
}

impl Objective for NextToken {
    fn weight(&self, batch: &Batch) -> f64 {
        batch.n_targets as f64
    }

    fn loss(&self, model: &dyn LanguageModel, inputs: &Inputs) -> nn::Result<ObjectiveLoss> {
        if !(inputs.evaluates && self.args.accuracy) {
            return Ok(model.token_loss(inputs, self.args.kind)?.into());
        }
        let (loss, hits) = model.token_loss_and_hits(inputs, self.args.kind)?;
        let mut loss = ObjectiveLoss::from(loss);
        loss.metrics.push(accuracy(inputs, &hits)?);
        Ok(loss)
    }

    fn metrics(&self, evaluates: bool) -> &'static [&'static str] {
        if evaluates && self.args.accuracy { &["accuracy"] } else { &[] }
    }

    fn is_token_loss(&self) -> bool {
        true
    }

    /// An example of L tokens has `±alpha / √(L · hidden_size)`, as in the paper. The noise depends on the seed and on the
    /// place of the example in the order of the run alone, so it is the same however a step is split, and after a
    /// checkpoint.
    fn noise(&self, hidden: usize, inputs: &Inputs) -> nn::Result<Option<Tensor>> {
        let Some(alpha) = self.args.neftune_alpha else { return Ok(None) };
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
