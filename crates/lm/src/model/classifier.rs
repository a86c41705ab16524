//! Classification of sequences with a decoder: `AutoModelForSequenceClassification` of the decoder families.
//!
//! Shape legend: B batch, S sequence, E hidden, L labels.

use oarlock_engine::nn::nested::Nested;
use oarlock_engine::nn::{self, Forward, Linear, Module, RmsNorm, Unit, in_scope};
use oarlock_tensor::ops::{self, Mask};
use oarlock_tensor::{DType, Error, Result, Tensor};

use super::block::norm;
use super::decoder::Body;
use super::hf::HfConfig;
use super::recompute::Recompute;

/// A decoder whose output is a linear layer without bias, `score`, on the last token of each row that is not a padding.
/// Its weights are named as those of `LlamaForSequenceClassification`.
#[derive(Debug, Module)]
pub struct SequenceClassifier {
    #[module(name = "")]
    body: Body,
    #[module(name = "")]
    head: Unit<ClassifierHead>,
    #[module(skip)]
    pad: Option<u32>,
    #[module(skip)]
    n_labels: usize,
}

/// The final norm and the weights of the labels.
#[derive(Debug, Module)]
pub struct ClassifierHead {
    #[module(name = "model.norm")]
    norm: RmsNorm,
    score: Linear,
}

/// What a classifier takes.
#[derive(Clone, Debug, Nested)]
pub struct ClassifierInput {
    /// i32 `[B, S]`.
    pub input_ids: Tensor,
    /// i32 `[B, S]`, 0 at padding: needed where rows are padded on the left.
    pub attention_mask: Option<Tensor>,
    /// Classes i32 `[B]`; for one label, numbers `[B]`; for several labels a row, 0 and 1 in f32 `[B, L]`.
    pub labels: Option<Tensor>,
}

/// Ids `[B, S]` and labels, without padding on the left.
impl From<(Tensor, Tensor)> for ClassifierInput {
    fn from((input_ids, labels): (Tensor, Tensor)) -> ClassifierInput {
        ClassifierInput { input_ids, attention_mask: None, labels: Some(labels) }
    }
}

/// What a classifier gives.
#[derive(Clone, Debug, Nested)]
pub struct ClassifierOutput {
    /// Where labels were given: cross-entropy, squared error for one label, binary cross-entropy for labels in f32.
    pub loss: Option<Tensor>,
    /// `[B, L]`.
    pub logits: Tensor,
}

impl SequenceClassifier {
    /// The classifier of a folder's settings, with its `num_labels` (or as many as `id2label` has, or 2), for sequences
    /// of up to `n_positions`. Weights come with [`Accelerator::load_pretrained`](oarlock_engine::Accelerator::load_pretrained).
    ///
    /// # Errors
    /// Settings that do not fit together, or more positions than the model allows.
    pub fn new(config: &HfConfig, n_positions: usize) -> oarlock_engine::Result<SequenceClassifier> {
        SequenceClassifier::with_labels(config, config.n_labels(), n_positions)
    }

    /// As [`SequenceClassifier::new`], with another number of labels.
    ///
    /// # Errors
    /// As [`SequenceClassifier::new`], and no label.
    pub fn with_labels(
        config: &HfConfig,
        n_labels: usize,
        n_positions: usize,
    ) -> oarlock_engine::Result<SequenceClassifier> {
        if n_labels == 0 {
            return Err(oarlock_engine::Error::Model(
                "a classifier needs at least one label (num_labels)".to_owned(),
            ));
        }
        let body = Body::new(config.decoder().clone(), n_positions, n_positions)?;
        let settings = body.config();
        let head = ClassifierHead {
            norm: norm(settings.hidden_size, settings.final_norm)?,
            score: Linear::normal(settings.hidden_size, n_labels, false, settings.init_std)?,
        };
        Ok(SequenceClassifier { body, head: Unit::new(head), pad: config.special().pad, n_labels })
    }

    /// Says which activations the backward pass computes again.
    pub fn set_recompute(&mut self, recompute: Recompute) {
        self.body.set_recompute(recompute);
    }

    /// ids i32 `[B, S]` → logits `[B, L]`.
    ///
    /// # Errors
    /// A token outside the vocabulary, several rows for a model without a padding token.
    pub fn logits(&self, ids: &Tensor, attention_mask: Option<&Tensor>) -> Result<Tensor> {
        in_scope(self, ids.device(), || {
            let last = self.last_tokens(ids)?;
            let x = self.body.hidden(ids, &left_padding(attention_mask)?)?;
            self.head.run(&x, |head| {
                let rows = ops::reshape(&x, [x.shape().n_rows(), x.shape().last()])?;
                let x = ops::index_select(&rows, 0, &last)?;
                head.score.forward(&head.norm.forward_to(&x, head.score.weight.weight()?.dtype())?)
            })
        })
    }

    /// The loss of logits `[B, L]`, of the kind that labels and their number ask for.
    ///
    /// # Errors
    /// Labels that do not fit.
    pub fn loss(&self, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
        match (self.n_labels, labels.dtype()) {
            (1, _) => nn::mse_loss(&ops::reshape(logits, labels.sizes())?, labels),
            (_, DType::I32) => nn::cross_entropy(logits, labels),
            _ => nn::bce_with_logits(logits, labels),
        }
    }

    /// The place of each row's last token that is not a padding, among all tokens: i32 `[B]`.
    fn last_tokens(&self, ids: &Tensor) -> Result<Tensor> {
        let &[batch, seq] = ids.sizes() else {
            return Err(Error::Shape {
                op: "SequenceClassifier",
                expected: "ids of shape [B, S]".to_owned(),
                got: format!("{:?}", ids.shape()),
            });
        };
        if self.pad.is_none() && batch != 1 {
            return Err(Error::Usage(format!(
                "a classifier whose config.json has no pad_token_id cannot tell where the {batch} rows of a batch end; \
                 give one row at a time, or set pad_token_id"
            )));
        }
        let last = |row: &[i32]| {
            let real = |id: &i32| self.pad.is_none_or(|pad| i64::from(*id) != i64::from(pad));
            row.iter().rposition(real).unwrap_or(0)
        };
        let places: Vec<i32> = match ids.device().is_dry() {
            true => vec![0; batch],
            false => {
                let ids = ids.to_vec::<i32>()?;
                (0..batch).map(|row| (row * seq + last(&ids[row * seq..][..seq])) as i32).collect()
            }
        };
        Tensor::from_slice(&places, [batch], ids.device())
    }
}

/// What an attention mask adds to a causal one: padding on the left is a document of its own. Padding on the right is
/// seen by no real token anyway.
fn left_padding(attention_mask: Option<&Tensor>) -> Result<Mask> {
    let Some(mask) = attention_mask.filter(|mask| !mask.device().is_dry()) else { return Ok(Mask::Causal) };
    let (seq, values) = (mask.shape().last().max(1), mask.to_vec::<i32>()?);
    let mut starts = Vec::with_capacity(values.len());
    for row in values.chunks(seq) {
        let first = row.iter().position(|&real| real != 0).unwrap_or(0);
        starts.extend((0..row.len()).map(|position| if position < first { 0 } else { first as i32 }));
    }
    if starts.iter().all(|&start| start == 0) {
        return Ok(Mask::Causal);
    }
    Ok(Mask::Documents(Tensor::from_slice(&starts, mask.sizes(), mask.device())?))
}

impl Forward<ClassifierInput> for SequenceClassifier {
    type Output = ClassifierOutput;
    fn forward(&self, input: &ClassifierInput) -> Result<ClassifierOutput> {
        let logits = self.logits(&input.input_ids, input.attention_mask.as_ref())?;
        let loss = input.labels.as_ref().map(|labels| self.loss(&logits, labels)).transpose()?;
        Ok(ClassifierOutput { loss, logits })
    }
}

impl Forward<Tensor> for SequenceClassifier {
    type Output = Tensor;
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.logits(ids, None)
    }
}
