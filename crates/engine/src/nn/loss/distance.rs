//! Losses of distances: absolute and squared errors, divergences of distributions, angles.

use oarlock_tensor::ops::{self, KlReduction, KlTarget, Reduction};
use oarlock_tensor::{Int, Result, Tensor};

use super::reduce::{in_f32, reduced};

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

/// The cosine of the angle between two vectors along a dim, which goes away; norms below `eps` count as `eps`. torch's
/// `eps` is 1e-8.
///
/// # Errors
/// A dim that they do not have, or shapes that do not broadcast.
pub fn cosine_similarity(a: &Tensor, b: &Tensor, dim: impl Int, eps: f32) -> Result<Tensor> {
    let (a, b) = (in_f32(a)?, in_f32(b)?);
    // Bounded before the root, whose slope at 0 is infinite.
    let least = (eps * eps).max(f32::MIN_POSITIVE);
    let norm = |x: &Tensor| ops::sum(&x.square()?, dim)?.clamp(least, f32::INFINITY)?.sqrt();
    ops::sum(&a.mul(&b)?, dim)?.div(&norm(&a)?.mul(&norm(&b)?)?)
}

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident = $default:expr)? } => $op:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: f32,)?
                /// How the losses of the elements become one number.
                pub reduction: Reduction,
            }

            impl Default for $name {
                /// torch's: the mean.
                fn default() -> $name {
                    $name { $($field: $default,)? reduction: Reduction::Mean }
                }
            }

            impl $name {
                /// Of x and a target of its shape. Both get gradients.
                ///
                /// # Errors
                /// Unequal shapes, or a setting that is out of its range.
                pub fn forward(&self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
                    ops::$op(&in_f32(x)?, &in_f32(target)?, $(self.$field,)? self.reduction)
                }
            }
        )*
    };
}

errors! {
    /// `torch.nn.MSELoss`: `(x - target)²`.
    MSELoss {} => mse_loss;
    /// `torch.nn.L1Loss`: `|x - target|`.
    L1Loss {} => l1_loss;
    /// `torch.nn.SmoothL1Loss`: squared and divided by `2 beta` up to `beta`, then linear with a slope of 1.
    SmoothL1Loss {
        /// Where the square ends; torch's default is 1.
        beta = 1.0
    } => smooth_l1_loss;
    /// `torch.nn.HuberLoss`: half of the square up to `delta`, then linear with a slope of `delta`.
    HuberLoss {
        /// Where the square ends; torch's default is 1.
        delta = 1.0
    } => huber_loss;
}

/// `torch.nn.KLDivLoss`: of log-probabilities and a target distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KLDivLoss {
    /// Whether the target is given as logarithms.
    pub log_target: bool,
    /// How the losses of the elements become one number; [`KlReduction::BatchMean`] is the divergence by its definition.
    pub reduction: KlReduction,
}

impl Default for KLDivLoss {
    /// torch's: the mean over all elements, probabilities as targets.
    fn default() -> KLDivLoss {
        KLDivLoss { log_target: false, reduction: KlReduction::Mean }
    }
}

impl KLDivLoss {
    /// As [`kl_div`].
    ///
    /// # Errors
    /// As [`kl_div`].
    pub fn forward(&self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        let form = if self.log_target { KlTarget::LogProbs } else { KlTarget::Probs };
        kl_div(x, target, form, self.reduction)
    }
}

/// `torch.nn.CosineEmbeddingLoss`: pairs that belong together point in one direction, others do not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineEmbeddingLoss {
    /// The cosine up to which pairs that do not belong together cost nothing; torch's default is 0.
    pub margin: f32,
    /// How the losses of the pairs become one number.
    pub reduction: Reduction,
}

impl Default for CosineEmbeddingLoss {
    /// torch's: the mean, with a margin of 0.
    fn default() -> CosineEmbeddingLoss {
        CosineEmbeddingLoss { margin: 0.0, reduction: Reduction::Mean }
    }
}

impl CosineEmbeddingLoss {
    /// a and b `[.., E]`, target `[..]` (floats) with 1 for pairs that belong together and -1 for others.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn forward(&self, a: &Tensor, b: &Tensor, target: &Tensor) -> Result<Tensor> {
        let cosine = cosine_similarity(a, b, -1, 1e-8)?;
        let target = in_f32(target)?;
        let together = target.add_scalar(1.0)?.scale(0.5)?;
        let apart = target.neg()?.add_scalar(1.0)?.scale(0.5)?;
        let near = cosine.neg()?.add_scalar(1.0)?.mul(&together)?;
        reduced(near.add(&cosine.add_scalar(-self.margin)?.relu()?.mul(&apart)?)?, self.reduction)
    }
}
