//! Functions of single elements.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use oarlock_tensor::ops;
use oarlock_tensor::{DType, Result, Tensor};

use super::{Array, Case, Sizes};
use crate::commands::gpu_check::formula::erf;

pub(super) fn cases(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, i, .. } = n;
    let (x, row) = ([b, s, i], [i]);
    let unary = |name: &str, op: fn(&Tensor) -> Result<Tensor>, f: fn(f64) -> f64, slope: fn(f64) -> f64| {
        Case::new(name, [&x], [], move |call| op(&call.inputs[0]), move |x| x.inputs[0].map(f, slope))
    };
    type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let binary = |name: &str, sizes: &[usize], op: Binary, formula: fn(&Array, &Array) -> Array| {
        Case::new(
            name,
            [&x, sizes],
            [],
            move |call| op(&call.inputs[0], &call.inputs[1]),
            move |x| formula(&x.inputs[0], &x.inputs[1]),
        )
    };
    let cast = |dtype: DType| {
        let op = move |call: &super::Call<'_>| ops::cast(&call.inputs[0], dtype);
        Case::new(format!("cast to {dtype}"), [&x], [], op, move |x| x.inputs[0].stored(dtype))
    };
    vec![
        unary(
            "gelu",
            ops::gelu,
            |x| x * normal(x),
            |x| normal(x) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt(),
        ),
        unary("silu", ops::silu, silu, silu_slope),
        unary("tanh", ops::tanh, f64::tanh, |x| 1.0 - x.tanh() * x.tanh()),
        unary("exp", ops::exp, f64::exp, f64::exp),
        unary("square", ops::square, |x| x * x, |x| 2.0 * x),
        binary("add", &x, |a, b| ops::add(a, b), Array::plus),
        binary("mul", &x, |a, b| ops::mul(a, b), Array::mul),
        binary("maximum", &x, |a, b| ops::maximum(a, b), |a, b| a.zip(b, f64::max, slopes_of_maximum)),
        binary("add, broadcast", &row, |a, b| ops::add(a, b), Array::plus),
        binary("mul, broadcast", &row, |a, b| ops::mul(a, b), Array::mul),
        cast(DType::F32),
        cast(DType::BF16),
        cast(DType::F16),
    ]
}

/// The normal distribution function.
fn normal(x: f64) -> f64 {
    0.5 * (1.0 + erf(x * FRAC_1_SQRT_2))
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(in crate::commands::gpu_check) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

pub(super) fn silu_slope(x: f64) -> f64 {
    sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)))
}

/// Equal operands share.
fn slopes_of_maximum(x: f64, y: f64) -> (f64, f64) {
    let of_x = if x == y { 0.5 } else { f64::from(u8::from(x > y)) };
    (of_x, 1.0 - of_x)
}
