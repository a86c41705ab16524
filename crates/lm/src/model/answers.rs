//! What objectives ask of a decoder besides the loss of the next token: log-probabilities of labels, and a reward for
//! whole sequences.
//!
//! Shape legend: B batch, S sequence, E hidden, V vocabulary, N sequences of a batch.

use oarlock_engine::nn::in_scope;
use oarlock_tensor::ops::{self, HeadOptions, IGNORE_INDEX, Labels, Mask, Transposed};
use oarlock_tensor::{DType, Result, Tensor};

use super::decoder::Decoder;
use super::head::Head;
use super::projection::Projection;

/// What a head says of labels.
#[derive(Clone, Debug)]
pub struct LogProbs {
    /// The log-probability of each label `[B, S]` in f32; 0 where there is none.
    pub of_labels: Tensor,
    /// The mean of the logits at each position `[B, S]` in f32, on no tape.
    pub mean_logits: Tensor,
}

impl Decoder {
    /// ids `[B, S]` and a label for each of them (shifted already, -100 ignored) → the log-probabilities of the labels.
    ///
    /// # Errors
    /// As [`Decoder::loss`].
    pub fn log_probs(&self, ids: &Tensor, labels: &Labels, mask: &Mask) -> Result<LogProbs> {
        in_scope(self, ids.device(), || {
            let x = self.hidden(ids, mask)?;
            self.head().run(&x, |head| head.log_probs(&x, labels))
        })
    }

    /// As [`Decoder::log_probs`], from the residual stream `[B, S, E]` behind the last layer.
    ///
    /// # Errors
    /// As [`Decoder::loss`].
    pub fn log_probs_of_stream(&self, x: &Tensor, labels: &Labels) -> Result<LogProbs> {
        in_scope(self, x.device(), || self.head().run(x, |head| head.log_probs(x, labels)))
    }

    /// ids `[B, S]` → the reward at each of these places among the B·S tokens, `[N]` in f32.
    ///
    /// # Errors
    /// As [`Decoder::loss`], and a model without a value head.
    pub fn values(&self, ids: &Tensor, mask: &Mask, places: &[usize]) -> Result<Tensor> {
        in_scope(self, ids.device(), || {
            let x = self.hidden(ids, mask)?;
            self.values_of_stream(&x, places)
        })
    }

    /// As [`Decoder::values`], from the residual stream `[B, S, E]` behind the last layer.
    ///
    /// # Errors
    /// As [`Decoder::values`].
    pub fn values_of_stream(&self, x: &Tensor, places: &[usize]) -> Result<Tensor> {
        let places: Vec<i32> = places.iter().map(|&place| place as i32).collect();
        let places = Tensor::from_slice(&places, [places.len()], x.device())?;
        self.head().run(x, |head| {
            let rows = ops::reshape(x, [x.shape().n_rows(), x.shape().last()])?;
            head.values(&ops::index_select(&rows, 0, &places)?)
        })
    }
}

impl Head {
    fn log_probs(&self, x: &Tensor, labels: &Labels) -> Result<LogProbs> {
        let normed = self.normed(x)?;
        let sizes = &x.sizes()[..x.sizes().len() - 1];
        let Projection::Linear(linear) = &self.lm_head else {
            let logits = self.logits_of(&normed)?.cast(DType::F32)?;
            let mean_logits = logits.detach().mean(-1)?;
            return Ok(LogProbs { of_labels: log_probs_of(&logits, labels)?, mean_logits });
        };
        let options = HeadOptions { logit_cap: self.logit_cap };
        let of_labels = in_scope(linear, normed.device(), || {
            ops::head_log_probs(&normed, &linear.weight, labels, options)
        })?;
        let normed = normed.detach();
        let mean_logits = match self.logit_cap {
            Some(_) => self.logits_of(&normed)?.detach().cast(DType::F32)?.mean(-1)?,
            // The mean of products with the rows of a weight is the product with their mean.
            None => {
                let weight = linear.weight.weight()?;
                let &[vocab, dim] = weight.sizes() else {
                    return Ok(LogProbs { mean_logits: of_labels.detach(), of_labels });
                };
                let ones = Tensor::ones([1, vocab], weight.dtype(), weight.device())?;
                let mean = ones.matmul(&weight)?.cast(DType::F32)?.scale(1.0 / vocab as f32)?;
                let rows = ops::reshape(&normed, [normed.shape().n_rows(), dim])?.cast(DType::F32)?;
                let means = ops::matmul_transposed(&rows, &mean, Transposed::Right)?;
                ops::reshape(&means, sizes)?
            }
        };
        Ok(LogProbs { of_labels, mean_logits })
    }

    /// x `[N, E]` → `[N]`.
    fn values(&self, x: &Tensor) -> Result<Tensor> {
        let Some(value) = &self.value else {
            return Err(oarlock_tensor::Error::Usage("the model has no value head (stage: rm)".to_owned()));
        };
        value.forward(&self.norm.forward_to(x, DType::F32)?)
    }
}

/// The log-probabilities of labels from logits `[B, S, V]` in f32.
fn log_probs_of(logits: &Tensor, labels: &Labels) -> Result<Tensor> {
    let sizes = logits.sizes();
    let device = logits.device();
    let is_target = |label: &i32| *label != IGNORE_INDEX;
    let places: Vec<i32> =
        labels.ids().iter().map(|label| if is_target(label) { *label } else { 0 }).collect();
    let counts: Vec<f32> = labels.ids().iter().map(|label| f32::from(u8::from(is_target(label)))).collect();
    let n = places.len();
    let places = Tensor::from_slice(&places, [n, 1], device)?;
    let rows = ops::reshape(logits, [n, logits.shape().last()])?.log_softmax(-1)?;
    let found = ops::reshape(&ops::gather(&rows, 1, &places)?, [n])?;
    let found = found.mul(&Tensor::from_slice(&counts, [n], device)?)?;
    ops::reshape(&found, &sizes[..sizes.len() - 1])
}
