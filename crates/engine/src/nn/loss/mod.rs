//! Losses as functions and as torch's modules; all of them compute in f32.

mod binary;
mod classes;
mod distance;

use oarlock_tensor::ops::Reduction;
use oarlock_tensor::{DType, Result, Tensor};

pub use binary::{BCELoss, BCEWithLogitsLoss, bce_with_logits};
pub use classes::{CrossEntropyLoss, NLLLoss, cross_entropy};
pub use distance::{
    CosineEmbeddingLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss, SmoothL1Loss, cosine_similarity, kl_div,
    mse_loss,
};

use super::layers::in_dtype;
use crate::nn::Forward;

fn in_f32(x: &Tensor) -> Result<Tensor> {
    in_dtype(x, DType::F32)
}

/// The losses of elements as a reduction wants them; the mean of none is 0.
fn reduced(losses: Tensor, reduction: Reduction) -> Result<Tensor> {
    match reduction {
        Reduction::None => Ok(losses),
        Reduction::Sum => losses.sum_all(),
        Reduction::Mean => losses.sum_all()?.scale(1.0 / losses.n_elems().max(1) as f32),
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

forward!(CrossEntropyLoss NLLLoss MSELoss L1Loss SmoothL1Loss HuberLoss KLDivLoss BCELoss BCEWithLogitsLoss);
