//! How the losses of elements become one number.

use oarlock_tensor::ops::Reduction;
use oarlock_tensor::{DType, Result, Tensor};

use crate::nn::layers::in_dtype;

pub(super) fn in_f32(x: &Tensor) -> Result<Tensor> {
    in_dtype(x, DType::F32)
}

/// The losses of elements as a reduction wants them; the mean of none is 0.
pub(super) fn reduced(losses: Tensor, reduction: Reduction) -> Result<Tensor> {
    match reduction {
        Reduction::None => Ok(losses),
        Reduction::Sum => losses.sum_all(),
        Reduction::Mean => losses.sum_all()?.scale(1.0 / losses.n_elems().max(1) as f32),
    }
}
