//! What models are made of: modules that name their parameters, layers under torch's names, losses, buffers, and units.
//!
//! A model is a struct with `#[derive(Module)]`, whose fields are layers and other modules; its parameters are found by
//! their fields' names. `Unit` around a field makes what is in it move together when state is divided. [`nested`] are the values that hold tensors: batches, and what
//! models return.

mod activation;
mod attention;
mod blocks;
mod buffer;
mod conv;
mod conv_transpose;
mod dropout;
mod flatten;
mod forward;
mod layers;
mod leaf;
mod loss;
mod mode;
mod module;
mod named;
pub mod nested;
mod norm;
mod pool;
mod quantized;
mod recurrent;
mod resample;
mod scope;
mod sequential;
mod stored_names;
mod training;
mod unit;
mod unit_run;
mod units;
mod wrap;

pub use activation::{
    Elu, Gelu, GeluTanh, Glu, Hardsigmoid, Hardswish, Hardtanh, LeakyRelu, LogSigmoid, LogSoftmax, Mish,
    PRelu, Relu, Relu6, Selu, Sigmoid, Silu, Softmax, Softplus, Softsign, Tanh,
};
pub use attention::{AttentionMasks, MultiHeadAttention};
pub use blocks::{EmbeddingBlocks, LinearBlocks};
pub use buffer::{Buffer, BufferValues};
pub use conv::{Conv, Conv1d, Conv2d, IntoSizes};
pub use conv_transpose::{ConvTranspose, ConvTranspose1d, ConvTranspose2d};
pub use dropout::{ChannelDropout, Dropout, Dropout1d, Dropout2d};
pub use flatten::{Flatten, Identity, Unflatten};
pub use layers::{Activation, Embedding, Linear, Mlp};
pub use loss::{
    BCELoss, BCEWithLogitsLoss, CosineEmbeddingLoss, CrossEntropyLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss,
    NLLLoss, SmoothL1Loss, bce_with_logits, cosine_similarity, cross_entropy, kl_div, mse_loss,
};
pub use mode::Mode;
pub use module::{Forward, Module, Visitor};
pub use named::{NamedBuffer, NamedParam, buffers, freeze, names_of, param, parameters};
pub use norm::{GroupNorm, LayerNorm, RmsNorm};
pub use oarlock_config::config::{Direction, Pattern, SparsityConfig};
pub use oarlock_derive::Module;
pub use oarlock_tensor::cpu::quantized::{Code as FourBitCode, Format as QuantizedFormat};
pub use oarlock_tensor::cpu::rope::RopeStyle;
pub use oarlock_tensor::ops::{
    BlockMask, CustomOp, CustomOps, IGNORE_INDEX, Interpolation, KlReduction, KlTarget, Mask, Reduction,
    Rope, custom, custom_outputs, parameter,
};
/// The ops that layers are made of, under the name of torch's `nn.functional`.
pub use oarlock_tensor::{Fan, Init, Nonlinearity, Param, Result, RopeScaling, Yarn, ops as functional};
pub use pool::{AdaptiveAvgPool1d, AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d};
pub use quantized::LinearQuantized;
pub use recurrent::{Gru, Lstm, Rnn};
pub use resample::{PixelShuffle, PixelUnshuffle, Upsample};
pub use scope::{in_scope, time_of};
pub use sequential::{Layer, Sequential};
pub use stored_names::StoredNames;
pub(crate) use training::{begin_pass, has_modes, seed_layers};
pub use training::{n_passes, set_passes, set_training};
pub use unit::{Unit, is_trained};
pub use unit_run::UnitRun;
pub use units::{UnitParams, units_of, wrapped_units_of};
pub use wrap::{Wrap, missing_class};
