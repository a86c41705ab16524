//! The common ops as methods of a tensor.

use oarlock_kernels::{DType, Result};

use crate::dims::Dims;
use crate::ints::Int;
use crate::ops::{self, Number, Operand};
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
    neg();
    scale(factor: f32);
    add_scalar(offset: f32);
    exp();
    log();
    sqrt();
    square();
    powf(exponent: f32);
    abs();
    clamp(low: f32, high: f32);
    silu();
    gelu();
    gelu_tanh();
    relu();
    tanh();
    sigmoid();
    leaky_relu(negative_slope: f32);
    elu(alpha: f32);
    softplus(beta: f32, threshold: f32);
    hardtanh(low: f32, high: f32);
    relu6();
    selu();
    mish();
    hardsigmoid();
    hardswish();
    logsigmoid();
    softsign();
    glu(dim: impl Int);
    reciprocal();
    rsqrt();
    exp2();
    expm1();
    log2();
    log1p();
    sin();
    cos();
    erf();
    floor();
    ceil();
    round();
    trunc();
    sign();
    logical_not();
    isnan();
    isinf();
    isfinite();
    softmax(dim: impl Int);
    log_softmax(dim: impl Int);
    dropout(p: f32, seed: u64, stream: u64);
    sum(dims: impl Dims);
    sum_keepdim(dims: impl Dims);
    sum_all();
    mean(dims: impl Dims);
    mean_keepdim(dims: impl Dims);
    mean_all();
    max(dim: impl Int);
    max_keepdim(dim: impl Int);
    max_all();
    min(dim: impl Int);
    min_keepdim(dim: impl Int);
    min_all();
    argmax(dim: impl Int);
    argmin(dim: impl Int);
    prod(dim: impl Int);
    prod_keepdim(dim: impl Int);
    prod_all();
    var(dims: impl Dims, correction: usize);
    var_keepdim(dims: impl Dims, correction: usize);
    std(dims: impl Dims, correction: usize);
    std_keepdim(dims: impl Dims, correction: usize);
    logsumexp(dims: impl Dims);
    logsumexp_keepdim(dims: impl Dims);
    norm(p: f32, dims: impl Dims);
    norm_keepdim(p: f32, dims: impl Dims);
    any(dims: impl Dims);
    any_keepdim(dims: impl Dims);
    all(dims: impl Dims);
    all_keepdim(dims: impl Dims);
    masked_fill(mask: &Tensor, value: impl Number);
    cast(dtype: DType);
}

macro_rules! with_operands {
    ($($name:ident)*) => {
        impl Tensor {
            $(
                #[doc = concat!("[`ops::", stringify!($name), "`] with a tensor or a number")]
                ///
                /// # Errors
                /// As the function.
                pub fn $name<'b>(&self, other: impl Into<Operand<'b>>) -> Result<Tensor> {
                    ops::$name(self, other)
                }
            )*
        }
    };
}

with_operands! {
    add sub mul div floor_divide remainder maximum minimum pow
    eq ne lt le gt ge logical_and logical_or logical_xor
}
