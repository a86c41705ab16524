//! Losses as functions and as torch's modules; all of them compute in f32.

use oarlock_tensor::ops::{self, IGNORE_INDEX, KlReduction, KlTarget, Reduction};
use oarlock_tensor::{DType, Error, Result, Tensor};

use super::layers::in_dtype;
use crate::nn::Forward;

/// The mean cross-entropy of logits `[.., V]` and labels `[..]` (i32), over the labels that are not -100: a scalar.
/// Without any such label it is 0, where torch gives NaN.
///
/// # Errors
/// Shapes that do not fit, or a label outside `0..V`.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    CrossEntropyLoss::default().forward(logits, labels)
}

/// The mean of `(x - target)²`: a scalar. Both get gradients.
///
/// # Errors
/// Unequal shapes.
pub fn mse_loss(x: &Tensor, target: &Tensor) -> Result<Tensor> {
    MSELoss::default().forward(x, target)
}

/// `target · (ln target - x)` for log-probabilities x, reduced to a scalar. Both get gradients.
///
/// # Errors
/// Unequal shapes.
pub fn kl_div(x: &Tensor, target: &Tensor, form: KlTarget, reduction: KlReduction) -> Result<Tensor> {
    ops::kl_div(&in_f32(x)?, &in_f32(target)?, form, reduction)
}

/// The mean binary cross-entropy of logits and targets between 0 and 1: a scalar. Both get gradients.
///
/// # Errors
/// Unequal shapes.
pub fn bce_with_logits(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    if logits.shape() != targets.shape() {
        return Err(Error::Shape {
            op: "bce_with_logits",
            expected: format!("targets of shape {:?}", logits.shape()),
            got: format!("{:?}", targets.shape()),
        });
    }
    let (x, yes) = (in_f32(logits)?, in_f32(targets)?);
    // The two-way cross-entropy of the logits x and 0.
    let zero = Tensor::zeros(x.sizes(), DType::F32, x.device())?;
    let dim = x.sizes().len();
    let likelihoods = ops::stack(&[&x, &zero], dim)?.log_softmax()?;
    let no = yes.neg()?.add_scalar(1.0)?;
    let weights = ops::stack(&[&yes, &no], dim)?;
    likelihoods.mul(&weights)?.sum_all()?.scale(-1.0 / x.n_elems().max(1) as f32)
}

fn in_f32(x: &Tensor) -> Result<Tensor> {
    in_dtype(x, DType::F32)
}

/// `torch.nn.CrossEntropyLoss`.
///
/// ```
/// use oarlock::nn::{CrossEntropyLoss, Reduction};
///
/// let criterion = CrossEntropyLoss { ignore_index: 0, reduction: Reduction::Sum };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossEntropyLoss {
    /// The label of rows without a loss.
    pub ignore_index: i32,
    /// How the losses of the rows become one number.
    pub reduction: Reduction,
}

impl Default for CrossEntropyLoss {
    /// torch's: the mean, without rows whose label is -100.
    fn default() -> CrossEntropyLoss {
        CrossEntropyLoss { ignore_index: IGNORE_INDEX, reduction: Reduction::Mean }
    }
}

impl CrossEntropyLoss {
    /// As [`cross_entropy`].
    ///
    /// # Errors
    /// As [`cross_entropy`].
    pub fn forward(&self, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
        ops::cross_entropy(logits, labels, self.ignore_index, self.reduction)
    }
}

/// `torch.nn.MSELoss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MSELoss {
    /// How the squares become one number.
    pub reduction: Reduction,
}

impl Default for MSELoss {
    /// torch's: the mean.
    fn default() -> MSELoss {
        MSELoss { reduction: Reduction::Mean }
    }
}

impl MSELoss {
    /// As [`mse_loss`].
    ///
    /// # Errors
    /// As [`mse_loss`].
    pub fn forward(&self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        ops::mse_loss(&in_f32(x)?, &in_f32(target)?, self.reduction)
    }
}

/// `torch.nn.BCEWithLogitsLoss`, averaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BCEWithLogitsLoss;

impl BCEWithLogitsLoss {
    /// As [`bce_with_logits`].
    ///
    /// # Errors
    /// As [`bce_with_logits`].
    pub fn forward(&self, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        bce_with_logits(logits, targets)
    }
}

macro_rules! forward {
    ($($loss:ident)*) => {
        $(impl Forward<(Tensor, Tensor)> for $loss {
            type Output = Tensor;
            fn forward(&self, (x, target): &(Tensor, Tensor)) -> Result<Tensor> {
                self.forward(x, target)
            }
        })*
    };
}

forward!(CrossEntropyLoss MSELoss BCEWithLogitsLoss);

#[cfg(test)]
mod tests {
    use super::*;
    use oarlock_tensor::cpu::Isa;
    use oarlock_tensor::{Device, Par, Tape};

    #[test]
    fn the_gradient_of_bce_is_the_difference_of_probability_and_target_also_at_zero() {
        let device = Device::cpu(Isa::detect(), Par::solo());
        let (tape, x) = (Tape::new(), [-30.0f32, -1.5, 0.0, 0.7, 40.0]);
        let targets = [0.0f32, 1.0, 0.25, 0.0, 1.0];
        let logits = tape.leaf(&Tensor::from_slice(&x, [5], &device).unwrap());
        let loss = bce_with_logits(&logits, &Tensor::from_slice(&targets, [5], &device).unwrap()).unwrap();
        assert!(loss.item::<f32>().unwrap().is_finite());
        let grads = tape.backward(&loss, 1.0).unwrap().of(&logits).unwrap().to_vec::<f32>().unwrap();
        for ((grad, x), target) in grads.iter().zip(x).zip(targets) {
            let want = (1.0 / (1.0 + (-f64::from(x)).exp()) - f64::from(target)) / 5.0;
            assert!((f64::from(*grad) - want).abs() < 1e-7, "{x}: {grad} {want}");
        }
        let other = Tensor::zeros([4], DType::F32, &device).unwrap();
        assert!(bce_with_logits(&logits, &other).unwrap_err().to_string().contains("[5]"));
    }
}
