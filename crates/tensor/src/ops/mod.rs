//! The ops: one file each, with its forward pass, its backward pass and its entry into the kernels.
//!
//! Shape legend used in all of them: B batch, S sequence, T tokens (B·S), H heads, G kv heads, D head size,
//! I inputs, O outputs, V vocabulary.

pub(crate) mod accumulate;
mod attention;
mod attention_fused;
mod binary;
pub mod block_int;
mod cast;
mod compare;
mod create;
mod cross_entropy;
mod custom;
mod dropout;
mod embedding;
mod gated;
mod gated_fused;
mod head_chunks;
mod head_form;
mod head_loss;
mod head_rows;
mod labels;
mod layer_norm;
mod linear;
mod linear_quantized;
mod methods;
mod noise;
mod norm;
pub mod one_bit;
mod operand;
mod operators;
pub mod optimizer;
mod pair_loss;
mod parameter;
pub mod quantized;
mod recompute;
mod reduce;
mod residual;
mod rope;
mod select;
pub mod singular;
mod softmax;
mod statistics;
pub mod transfer;
mod unary;
pub mod update;

// Shapes, indices and products.
mod conv;
mod conv_transpose;
mod cumsum;
mod diagonal;
mod einsum;
mod flip;
mod gather;
mod heads;
mod index;
mod index_select;
mod layout;
mod matmul;
mod nonzero;
mod one_hot;
mod pad;
mod pool;
mod resample;
mod reshape;
mod row_loss;
mod shape_methods;
mod slice;
mod sort;
mod strided;
mod triangle;
pub use conv::{ConvOptions, conv1d, conv2d};
pub use conv_transpose::{ConvTransposeOptions, conv_transpose1d, conv_transpose2d};
pub use pool::{
    PoolOptions, adaptive_avg_pool1d, adaptive_avg_pool2d, avg_pool1d, avg_pool2d, max_pool1d, max_pool2d,
};
pub use row_loss::{RowLossOptions, RowLosses, row_losses};

pub use attention::{
    AttentionOptions, BlockMask, CACHE_PAGE, CachedKv, Mask, attention, attention_cached,
    attention_cached_each, attention_in_pages,
};
pub use attention_fused::{QkvHeads, attention_fused};
pub use binary::{add, div, floor_divide, maximum, minimum, mul, pow, remainder, sub};
pub use cast::cast;
pub use compare::{
    eq, ge, gt, isfinite, isinf, isnan, le, logical_and, logical_not, logical_or, logical_xor, lt, ne,
};
pub use cross_entropy::{Reduction, cross_entropy};
pub use custom::{CustomOp, CustomOps, custom, custom_linear, custom_outputs};
pub use dropout::dropout;
pub use embedding::{embedding, embedding_to};
pub use gated::{gated, glu};
pub use gated_fused::gated_fused;
pub use head_loss::{HeadLoss, HeadOptions, head_hits, head_log_probs, head_loss, head_token_loss, logits};
pub use labels::{IGNORE_INDEX, Labels};
pub use layer_norm::layer_norm;
pub use linear::{WeightLayout, linear, linear_add};
pub use linear_quantized::{dequantize, embedding_blocks, linear_blocks, linear_quantized};
pub use noise::{NoisePart, uniform_noise};
pub use norm::{add_rms_norm, rms_norm, rms_norm_to};
pub use oarlock_kernels::glu::Activation;
pub use oarlock_kernels::token_loss::TokenLoss;
pub use operand::{Number, Operand};
pub use pair_loss::{
    KlReduction, KlTarget, binary_cross_entropy, huber_loss, kl_div, l1_loss, mse_loss, smooth_l1_loss,
};
pub use parameter::parameter;
pub use recompute::{checkpoint, checkpoint_without_output, offloaded_checkpoint};
pub use reduce::{
    argmax, argmin, max, max_all, max_keepdim, mean, mean_all, mean_keepdim, min, min_all, min_keepdim, prod,
    prod_all, prod_keepdim, sum, sum_all, sum_keepdim,
};
pub use residual::add_residual;
pub use rope::{Rope, rope, rope_each};
pub use select::{masked_fill, where_cond};
pub use softmax::{log_softmax, softmax};
pub use statistics::{
    all, all_keepdim, any, any_keepdim, logsumexp, logsumexp_keepdim, norm, norm_keepdim, std, std_keepdim,
    var, var_keepdim,
};
pub use unary::{
    abs, add_scalar, ceil, clamp, cos, elu, erf, exp, exp2, expm1, floor, gelu, gelu_tanh, hardsigmoid,
    hardswish, hardtanh, leaky_relu, log, log1p, log2, logsigmoid, mish, neg, powf, reciprocal, relu, relu6,
    round, rsqrt, scale, selu, sigmoid, sign, silu, sin, softplus, softsign, sqrt, square, tanh, trunc,
};

pub use cumsum::cumsum;
pub use diagonal::{diag, diagonal};
pub use einsum::einsum;
pub use flip::{flip, roll};
pub use gather::{gather, scatter, scatter_add, take_along_dim};
pub use heads::{last_position, merge_heads, split_heads};
pub use index::{Ellipsis, IntoItem, IntoItems, Item, NewAxis, Step};
pub use index_select::{index_add, index_select};
pub use layout::{expand, meshgrid, movedim, permute, repeat, repeat_interleave, t, transpose};
pub use matmul::{Transposed, bmm, matmul, matmul_transposed};
pub use nonzero::nonzero;
pub use one_hot::one_hot;
pub use pad::pad;
pub use resample::{Interpolation, interpolate, pixel_shuffle, pixel_unshuffle};
pub use reshape::{flatten, reshape, squeeze, squeeze_all, unflatten, unsqueeze};
pub use slice::{SplitSizes, chunk, concat, concat as cat, narrow, select, split, stack, unbind};
pub use sort::{argsort, sort, topk};
pub use triangle::{tril, triu};

pub(crate) use crate::dims::dim_of;

/// Runs a body with `$T` standing for the Rust type of a float dtype; integers are an error of `$op`.
macro_rules! with_float {
    ($dtype:expr, $op:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::BF16 => {
                type $T = oarlock_kernels::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $T = oarlock_kernels::f16;
                $body
            }
            got => Err($crate::Error::DType { op: $op, expected: "a float tensor", got }),
        }
    };
}
pub(crate) use with_float;

/// Runs a body with `$T` standing for the Rust type of a dtype.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::BF16 => {
                type $T = oarlock_kernels::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $T = oarlock_kernels::f16;
                $body
            }
            $crate::DType::I32 => {
                type $T = i32;
                $body
            }
        }
    };
}
pub(crate) use with_element;

/// Runs a body with `$name` standing for the view of a tensor that a launch reads, whose elements are f32 or else of
/// type `$T`.
macro_rules! with_float_or_f32 {
    ($launch:expr, $tensor:expr, $T:ty, $name:ident => $body:expr) => {
        if $tensor.dtype() == $crate::DType::F32 {
            let $name = $launch.read::<f32>($tensor)?;
            $body
        } else {
            let $name = $launch.read::<$T>($tensor)?;
            $body
        }
    };
}
pub(crate) use with_float_or_f32;

/// Runs a body with `$W` standing for an integer of the dtype's size: for ops that only move elements.
macro_rules! with_word {
    ($dtype:expr, $W:ident => $body:expr) => {
        match $dtype.size() {
            2 => {
                type $W = u16;
                $body
            }
            _ => {
                type $W = u32;
                $body
            }
        }
    };
}
pub(crate) use with_word;

use oarlock_kernels::{Error, Result};

use crate::tensor::Tensor;

/// A result through which no gradient flows. It is on the tape of the inputs, so that ops with parameters that use it are
/// recorded.
pub(crate) fn beside(inputs: &[&Tensor], y: Tensor) -> Tensor {
    match inputs.iter().find_map(|x| x.tape()) {
        Some(tape) => tape.input(&y),
        None => y,
    }
}

/// The one device of an op's inputs.
pub(crate) fn check_device(op: &'static str, first: &Tensor, others: &[&Tensor]) -> Result<()> {
    if others.iter().all(|t| t.device().same(first.device())) {
        return Ok(());
    }
    Err(Error::Usage(format!("{op}: its inputs live on different devices")))
}

pub(crate) fn check_dtype(op: &'static str, expected: &Tensor, got: &Tensor) -> Result<()> {
    if expected.dtype() == got.dtype() {
        return Ok(());
    }
    let expected = match expected.dtype() {
        crate::DType::F32 => "f32, as the other input",
        crate::DType::BF16 => "bf16, as the other input",
        crate::DType::F16 => "f16, as the other input",
        crate::DType::I32 => "i32, as the other input",
    };
    Err(Error::DType { op, expected, got: got.dtype() })
}

/// Whether `index` holds indices into x, and lives where x does.
pub(crate) fn check_indices(op: &'static str, x: &Tensor, index: &Tensor) -> Result<()> {
    check_device(op, x, &[index])?;
    if index.dtype() == crate::DType::I32 {
        return Ok(());
    }
    Err(Error::DType { op, expected: "i32 indices", got: index.dtype() })
}

pub(crate) fn wrong_shape(op: &'static str, expected: impl Into<String>, got: &Tensor) -> Error {
    Error::Shape { op, expected: expected.into(), got: format!("{:?}", got.shape()) }
}
