//! Functions of single elements.

use oarlock_reference::function::{Activation, maximum};
use oarlock_tensor::ops;
use oarlock_tensor::{DType, Result, Tensor};

use super::shapes::Sizes;
use crate::commands::gpu_check::case::{Call, Case};
use crate::commands::gpu_check::place::round;
use oarlock_reference::formula::Array;

pub(super) fn cases(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, i, .. } = n;
    let (x, row) = ([b, s, i], [i]);
    let unary = |name: &str, op: fn(&Tensor) -> Result<Tensor>, f: fn(f64) -> f64, slope: fn(f64) -> f64| {
        Case::new(name, [&x], [], move |call| op(&call.inputs[0]), move |x| x.inputs[0].map(f, slope))
    };
    let activation = |name: &str, op: fn(&Tensor) -> Result<Tensor>, act: Activation| {
        Case::new(name, [&x], [], move |call| op(&call.inputs[0]), move |x| act.of(&x.inputs[0]))
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
        let op = move |call: &Call<'_>| ops::cast(&call.inputs[0], dtype);
        Case::new(format!("cast to {dtype}"), [&x], [], op, move |x| {
            x.inputs[0].rounded(move |x| f64::from(round(x as f32, dtype)))
        })
    };
    vec![
        activation("gelu", ops::gelu, Activation::Gelu),
        activation("silu", ops::silu, Activation::Silu),
        activation("tanh", ops::tanh, Activation::Tanh),
        unary("exp", ops::exp, libm::exp, libm::exp),
        unary("square", ops::square, |x| x * x, |x| 2.0 * x),
        binary("add", &x, |a, b| ops::add(a, b), Array::plus),
        binary("mul", &x, |a, b| ops::mul(a, b), Array::mul),
        binary("maximum", &x, |a, b| ops::maximum(a, b), maximum),
        binary("add, broadcast", &row, |a, b| ops::add(a, b), Array::plus),
        binary("mul, broadcast", &row, |a, b| ops::mul(a, b), Array::mul),
        cast(DType::F32),
        cast(DType::BF16),
        cast(DType::F16),
    ]
}
