//! What is compared with the CPU bit by bit: integers, comparisons, orders, and random numbers, whose bits the CPU's kernels
//! define.

use oarlock_tensor::ops::update::Stream;
use oarlock_tensor::ops::{self, NoisePart};
use oarlock_tensor::{DType, Result, Tensor};

use super::shapes::Sizes;
use crate::commands::gpu_check::case::{Call, Case};
use crate::commands::gpu_check::place::normal;

pub(super) fn cases(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, i, .. } = n;
    let x = [b, s, i];
    let of_floats = |name: &str, op: fn(&Tensor, &Tensor) -> Result<Tensor>| {
        Case::as_on_cpu(name, [&x, &x], move |call| op(&call.inputs[0], &call.inputs[1]))
    };
    // Of integers, and of indices below the middle dim, each several times.
    let of_ints = |name: &str, op: fn(&Tensor, &Tensor) -> Result<Tensor>| {
        let op = move |call: &Call<'_>| {
            let ints = ops::sub(&call.place.ints(&x, 1000)?, 500)?;
            op(&ints, &call.place.ints(&x, s)?)
        };
        Case::as_on_cpu(name, [&[]], op).of_ints()
    };
    let made = |name: &str, op: fn(&Call<'_>, [usize; 3]) -> Result<Tensor>| {
        Case::as_on_cpu(name, [&[]], move |call| op(call, x))
    };
    vec![
        of_floats("gt", |a, b| ops::gt(a, b)),
        of_floats("isnan", |a, _| ops::isnan(a)),
        of_floats("where_cond", |a, b| ops::where_cond(&ops::lt(a, b)?, a, b)),
        of_floats("argmax", |a, _| ops::argmax(a, 1)),
        of_floats("min", |a, _| ops::min(a, 1)),
        of_floats("argsort", |a, _| ops::argsort(a, -1, false)),
        of_floats("topk, the indices", |a, _| Ok(ops::topk(a, 17, 1, false)?.1)),
        of_floats("cast to integers", |a, _| ops::cast(&ops::mul(a, 10.0)?, DType::I32)),
        of_ints("cast to f32", |a, _| ops::cast(a, DType::F32)),
        of_ints("cast to bf16", |a, _| ops::cast(a, DType::BF16)),
        of_ints("cast to f16", |a, _| ops::cast(a, DType::F16)),
        of_ints("mul and maximum", |a, b| ops::maximum(&ops::mul(a, b)?, b)),
        of_ints("ge", |a, b| ops::ge(a, b)),
        of_ints("where_cond", |a, b| ops::where_cond(&ops::lt(a, b)?, a, b)),
        of_ints("sum", |a, _| ops::sum(a, 1)),
        of_ints("max", |a, _| ops::max(a, -1)),
        of_ints("cumsum", |a, _| ops::cumsum(a, 1)),
        of_ints("sort", |a, _| Ok(ops::sort(a, 1, false)?.0)),
        of_ints("topk", |a, _| Ok(ops::topk(a, 5, -1, true)?.0)),
        of_ints("gather", |a, index| ops::gather(a, 1, index)),
        of_ints("scatter", |a, index| ops::scatter(a, 1, index, a)),
        of_ints("scatter_add", |a, index| ops::scatter_add(a, 1, index, a)),
        of_ints("index_select", |a, index| {
            ops::index_select(a, 1, &ops::select(&ops::select(index, 0, 0)?, 1, 0)?)
        }),
        of_ints("index_add", |a, index| {
            ops::index_add(a, 1, &ops::select(&ops::select(index, 0, 0)?, 1, 0)?, a)
        }),
        of_ints("flip and tril", |a, _| ops::tril(&ops::flip(a, [1])?, 0)),
        of_ints("transpose", |a, _| ops::transpose(a, 0, 2)),
        of_ints("pad", |a, _| ops::pad(a, [1, 2], 7.0)),
        of_ints("narrow and concat", |a, b| ops::concat(&[&ops::narrow(a, 2, 3..7)?, b], 2)),
        made("uniform noise", |call, x| {
            let part =
                NoisePart { stream: Stream { seed: 3, stream: 8 }, first: 6, elems: 5..37, magnitude: 0.5 };
            ops::uniform_noise(x, vec![part], call.place.device)
        }),
        made("rand", |call, x| Tensor::rand(x, 7, call.place.dtype, call.place.device)),
        made("randn", |call, x| Tensor::randn(x, 7, call.place.dtype, call.place.device)).nearly(),
        made("scale and clamp", |call, x| {
            let (n, device) = (x.iter().product(), call.place.device);
            let flat = call.place.flat(DType::F32, &normal(4, n))?;
            ops::update::scale_clamp(device, &flat, 3..n, 0.75, 0.5)?;
            Tensor::from_slice(&ops::transfer::read_with(&flat, 0..n, |x: &[f32]| x.to_vec())?, x, device)
        }),
        made("full", |call, x| Tensor::full(x, 1.5, call.place.dtype, call.place.device)),
    ]
}
