//! Losses of classes: cross-entropy of logits and of log-probabilities.

use oarlock_tensor::ops::{self, IGNORE_INDEX, Reduction, RowLossOptions};
use oarlock_tensor::{Error, Result, Tensor};

use super::reduce::{in_f32, reduced};
use crate::nn::buffer::Buffer;

/// The mean cross-entropy of logits `[.., V]` and labels `[..]` (i32), over the labels that are not -100: a scalar.
/// Without any such label it is 0, where torch gives NaN.
///
/// # Errors
/// Shapes that do not fit, or a label outside `0..V`.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    CrossEntropyLoss::default().forward(logits, labels)
}

/// `torch.nn.CrossEntropyLoss`, with the classes in the last dim.
///
/// ```
/// use oarlock::nn::{Buffer, CrossEntropyLoss, Reduction};
///
/// # fn main() -> oarlock::nn::Result<()> {
/// let criterion = CrossEntropyLoss {
///     weight: Some(Buffer::new([3], vec![1.0, 2.0, 0.5])?),
///     label_smoothing: 0.1,
///     reduction: Reduction::None,
///     ..CrossEntropyLoss::default()
/// };
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CrossEntropyLoss {
    /// A factor for each class, `[V]`. A mean divides by the factors of the labels.
    pub weight: Option<Buffer>,
    /// The label of rows without a loss.
    pub ignore_index: i32,
    /// How the losses of the rows become one number.
    pub reduction: Reduction,
    /// The share of each label that all classes get in equal parts, 0 to 1 (Szegedy et al. 2016).
    pub label_smoothing: f32,
}

impl Default for CrossEntropyLoss {
    /// torch's: the mean, without rows whose label is -100.
    fn default() -> CrossEntropyLoss {
        CrossEntropyLoss {
            weight: None,
            ignore_index: IGNORE_INDEX,
            reduction: Reduction::Mean,
            label_smoothing: 0.0,
        }
    }
}

impl CrossEntropyLoss {
    /// Of logits `[.., V]` and labels `[..]` (i32), or a probability for each class, `[.., V]`.
    ///
    /// # Errors
    /// As [`cross_entropy`].
    pub fn forward(&self, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
        if labels.dtype().is_float() {
            return self.of_probabilities(logits, labels);
        }
        if self.weight.is_none() && self.label_smoothing == 0.0 {
            return ops::cross_entropy(logits, labels, self.ignore_index, self.reduction);
        }
        let options = RowLossOptions {
            ignore_index: self.ignore_index,
            weight: on_device(&self.weight, logits)?,
            label_smoothing: self.label_smoothing,
            log_probs: false,
        };
        of_rows(logits, labels, &options, self.reduction)
    }

    fn of_probabilities(&self, logits: &Tensor, probs: &Tensor) -> Result<Tensor> {
        if probs.shape() != logits.shape() || logits.sizes().is_empty() {
            return Err(Error::Shape {
                op: "cross_entropy",
                expected: format!("labels (i32), or probabilities of shape {:?}", logits.shape()),
                got: format!("{probs:?}"),
            });
        }
        let classes = logits.sizes().len() - 1;
        let smoothing = self.label_smoothing;
        let mut shares = in_f32(probs)?;
        if smoothing != 0.0 {
            shares = shares.scale(1.0 - smoothing)?.add_scalar(smoothing / logits.shape().last() as f32)?;
        }
        if let Some(weight) = on_device(&self.weight, logits)? {
            shares = shares.mul(&weight)?;
        }
        let losses = ops::sum(&in_f32(logits)?.log_softmax(-1)?.mul(&shares)?, classes)?.neg()?;
        reduced(losses, self.reduction)
    }
}

/// `torch.nn.NLLLoss`: as [`CrossEntropyLoss`], of log-probabilities.
#[derive(Clone, Debug)]
pub struct NLLLoss {
    /// A factor for each class, `[V]`. A mean divides by the factors of the labels.
    pub weight: Option<Buffer>,
    /// The label of rows without a loss.
    pub ignore_index: i32,
    /// How the losses of the rows become one number.
    pub reduction: Reduction,
}

impl Default for NLLLoss {
    /// torch's: the mean, without rows whose label is -100.
    fn default() -> NLLLoss {
        NLLLoss { weight: None, ignore_index: IGNORE_INDEX, reduction: Reduction::Mean }
    }
}

impl NLLLoss {
    /// Of log-probabilities `[.., V]` and labels `[..]` (i32).
    ///
    /// # Errors
    /// As [`cross_entropy`].
    pub fn forward(&self, log_probs: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let options = RowLossOptions {
            ignore_index: self.ignore_index,
            weight: on_device(&self.weight, log_probs)?,
            label_smoothing: 0.0,
            log_probs: true,
        };
        of_rows(log_probs, labels, &options, self.reduction)
    }
}

fn on_device(weight: &Option<Buffer>, x: &Tensor) -> Result<Option<Tensor>> {
    weight.as_ref().map(|weight| weight.on(x.device())).transpose()
}

fn of_rows(x: &Tensor, labels: &Tensor, options: &RowLossOptions, reduction: Reduction) -> Result<Tensor> {
    let rows = ops::row_losses(x, labels, options)?;
    match reduction {
        Reduction::None => Ok(rows.losses),
        Reduction::Sum => rows.losses.sum_all(),
        // Where no row counts, the sum is 0 as well.
        Reduction::Mean => {
            rows.losses.sum_all()?.div(&rows.weights.sum_all()?.clamp(f32::MIN_POSITIVE, f32::INFINITY)?)
        }
    }
}
