//! Layers with a method `forward`, for those who take any layer.

use oarlock_tensor::{Result, Tensor};

use super::attention::MultiHeadAttention;
use super::dropout::{ChannelDropout, Dropout};
use super::layers::{Embedding, Linear, Mlp};
use super::module::Forward;
use super::norm::{GroupNorm, LayerNorm, RmsNorm};

macro_rules! layers {
    ($($layer:ident)*) => {
        $(impl Forward<Tensor> for $layer {
            type Output = Tensor;
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                self.forward(x)
            }
        })*
    };
}
layers!(Linear Embedding Mlp MultiHeadAttention RmsNorm LayerNorm GroupNorm Dropout ChannelDropout);
