//! The ops: each in a file of its own with its forward pass, its backward pass and its entry into the kernels.
//!
//! Shape legend used in all of them: B batch, S sequence, T tokens (B·S), H heads, G kv heads, D head size,
//! I inputs, O outputs, V vocabulary.

pub(crate) mod accumulate;
mod attention;
mod embedding;
mod head_loss;
mod heads;
mod linear;
mod norm;
mod residual;
mod rope;
mod swiglu;
pub mod update;

pub use attention::{Mask, attention, attention_cached};
pub use embedding::embedding;
pub use heads::{last_position, merge_heads, reshape, split_heads};
pub use head_loss::{HeadLoss, IGNORE_INDEX, head_loss, logits};
pub use linear::{WeightLayout, linear};
pub use norm::rms_norm;
pub use residual::add;
pub use rope::{Rope, rope};
pub use swiglu::swiglu;

/// Runs a body with `$T` standing for the Rust type of a float dtype; integers are an error of `$op`.
macro_rules! with_float {
    ($dtype:expr, $op:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::dtype::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::dtype::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            $crate::dtype::DType::F16 => {
                type $T = half::f16;
                $body
            }
            got => Err($crate::error::Error::DType { op: $op, expected: "a float tensor", got }),
        }
    };
}
pub(crate) use with_float;

use crate::error::{Error, Result};
use crate::tensor::Tensor;

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

pub(crate) fn wrong_shape(op: &'static str, expected: impl Into<String>, got: &Tensor) -> Error {
    Error::Shape { op, expected: expected.into(), got: format!("{:?}", got.shape()) }
}
