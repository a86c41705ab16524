//! The common ops as methods of a tensor.

use crate::dtype::DType;
use crate::error::Result;
use crate::ops;
use crate::tensor::Tensor;

macro_rules! methods {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {
        impl Tensor {
            $(
                #[doc = concat!("[`ops::", stringify!($name), "`]")]
                ///
                /// # Errors
                /// As the function.
                pub fn $name(&self, $($arg: $ty),*) -> Result<Tensor> {
                    ops::$name(self, $($arg),*)
                }
            )*
        }
    };
}
pub(super) use methods;

methods! {
    add(other: &Tensor);
    sub(other: &Tensor);
    mul(other: &Tensor);
    div(other: &Tensor);
    neg();
    scale(factor: f32);
    add_scalar(offset: f32);
    exp();
    log();
    sqrt();
    square();
    powf(exponent: f32);
    abs();
    maximum(low: f32);
    minimum(high: f32);
    clamp(low: f32, high: f32);
    silu();
    gelu();
    gelu_tanh();
    relu();
    tanh();
    sigmoid();
    softmax();
    log_softmax();
    dropout(p: f32, seed: u64, stream: u64);
    sum(dim: usize);
    sum_keepdim(dim: usize);
    sum_all();
    mean(dim: usize);
    mean_keepdim(dim: usize);
    mean_all();
    max(dim: usize);
    max_keepdim(dim: usize);
    max_all();
    argmax(dim: usize);
    masked_fill(mask: &Tensor, value: f32);
    cast(dtype: DType);
}
