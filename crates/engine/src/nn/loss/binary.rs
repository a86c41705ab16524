//! Binary cross-entropy of probabilities and of logits.

use oarlock_tensor::ops::{self, Reduction};
use oarlock_tensor::{DType, Error, Result, Tensor};

use super::reduce::{in_f32, reduced};
use crate::nn::buffer::Buffer;

/// The mean binary cross-entropy of logits and targets between 0 and 1: a scalar. Both get gradients.
///
/// # Errors
/// Unequal shapes.
pub fn bce_with_logits(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    BCEWithLogitsLoss::default().forward(logits, targets)
}

/// `torch.nn.BCEWithLogitsLoss`.
#[derive(Clone, Debug)]
pub struct BCEWithLogitsLoss {
    /// A factor for each element, in a shape that broadcasts.
    pub weight: Option<Buffer>,
    /// A factor of the positive part, in a shape that broadcasts: above 1 for more recall.
    pub pos_weight: Option<Buffer>,
    /// How the losses of the elements become one number.
    pub reduction: Reduction,
}

impl Default for BCEWithLogitsLoss {
    /// torch's: the mean.
    fn default() -> BCEWithLogitsLoss {
        BCEWithLogitsLoss { weight: None, pos_weight: None, reduction: Reduction::Mean }
    }
}

impl BCEWithLogitsLoss {
    /// As [`bce_with_logits`].
    ///
    /// # Errors
    /// As [`bce_with_logits`], and factors that do not broadcast.
    pub fn forward(&self, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        same_shape("bce_with_logits", logits, targets)?;
        let (x, mut yes) = (in_f32(logits)?, in_f32(targets)?);
        // The two-way cross-entropy of the logits x and 0.
        let zero = Tensor::zeros(x.sizes(), DType::F32, x.device())?;
        let dim = x.sizes().len();
        let likelihoods = ops::stack(&[&x, &zero], dim)?.log_softmax(-1)?;
        let no = yes.neg()?.add_scalar(1.0)?;
        if let Some(weight) = &self.pos_weight {
            yes = yes.mul(&weight.on(x.device())?)?;
        }
        let products = likelihoods.mul(&ops::stack(&[&yes, &no], dim)?)?;
        match (&self.weight, self.reduction) {
            (None, Reduction::Sum) => products.sum_all()?.neg(),
            (None, Reduction::Mean) => products.sum_all()?.scale(-1.0 / x.n_elems().max(1) as f32),
            (weight, reduction) => weighted(ops::sum(&products, dim)?.neg()?, weight, reduction),
        }
    }
}

/// `torch.nn.BCELoss`: of probabilities. [`BCEWithLogitsLoss`] is exact also near 0 and 1.
#[derive(Clone, Debug)]
pub struct BCELoss {
    /// A factor for each element, in a shape that broadcasts.
    pub weight: Option<Buffer>,
    /// How the losses of the elements become one number.
    pub reduction: Reduction,
}

impl Default for BCELoss {
    /// torch's: the mean.
    fn default() -> BCELoss {
        BCELoss { weight: None, reduction: Reduction::Mean }
    }
}

impl BCELoss {
    /// `-t · ln x - (1 - t) · ln(1 - x)`, with logarithms of -100 or more. Both get gradients.
    ///
    /// # Errors
    /// Unequal shapes, or factors that do not broadcast.
    pub fn forward(&self, probs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        same_shape("binary_cross_entropy", probs, targets)?;
        let (x, t) = (in_f32(probs)?, in_f32(targets)?);
        if self.weight.is_none() {
            return ops::binary_cross_entropy(&x, &t, self.reduction);
        }
        weighted(ops::binary_cross_entropy(&x, &t, Reduction::None)?, &self.weight, self.reduction)
    }
}

fn weighted(losses: Tensor, weight: &Option<Buffer>, reduction: Reduction) -> Result<Tensor> {
    match weight {
        Some(weight) => reduced(losses.mul(&weight.on(losses.device())?)?, reduction),
        None => reduced(losses, reduction),
    }
}

fn same_shape(op: &'static str, x: &Tensor, targets: &Tensor) -> Result<()> {
    if x.shape() == targets.shape() {
        return Ok(());
    }
    Err(Error::Shape {
        op,
        expected: format!("targets of shape {:?}", x.shape()),
        got: format!("{:?}", targets.shape()),
    })
}

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
