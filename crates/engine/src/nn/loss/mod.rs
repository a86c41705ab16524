//! Losses as functions and as torch's modules; all of them compute in f32.

mod binary;
mod classes;
mod distance;
mod reduce;

use oarlock_tensor::{Result, Tensor};

use crate::nn::module::Forward;

pub use binary::{BCELoss, BCEWithLogitsLoss, bce_with_logits};
pub use classes::{CrossEntropyLoss, NLLLoss, cross_entropy};
pub use distance::{
    CosineEmbeddingLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss, SmoothL1Loss, cosine_similarity, kl_div,
    mse_loss,
};

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
