//! What a decoder has beside attention and products.

use std::sync::Arc;

use oarlock_reference::function::Activation;
use oarlock_reference::norm::{layer_norm, rms_norm};
use oarlock_reference::rope::{Pairs, angle, rotated};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::ops::{self, Rope};
use oarlock_tensor::{DType, Device, Par, Result, RopeScaling, Tensor};

use super::shapes::Sizes;
use crate::commands::gpu_check::case::Case;
use crate::commands::gpu_check::place::ints;
use oarlock_reference::formula::Array;

/// Of norms: large enough that errors show where it is.
pub(super) const EPS: f32 = 0.1;
pub(super) const THETA: f64 = 1e4;
/// The first position.
pub(super) const FIRST: usize = 3;
/// Of dropout: the probability, the seed and the stream.
const DROPOUT: (f32, u64, u64) = (0.1, 5, 3);

pub(super) fn cases(n: &Sizes) -> Result<Vec<Case>> {
    let &Sizes { b, s, h, heads: [d, _], i, v, .. } = n;
    let x = [b, s, i];
    let rope = |name: &str, style: RopeStyle| {
        Case::new(
            name,
            [&[b, s, h, d]],
            [],
            move |call| {
                let table = Arc::new(Rope::new(THETA, d, style, RopeScaling::None, s + FIRST)?);
                ops::rope(&call.inputs[0], &table, FIRST)
            },
            move |x| turned(&x.inputs[0], style),
        )
    };
    let kept = kept(&x)?;
    Ok(vec![
        Case::new(
            "rms_norm",
            [&x],
            [&[i]],
            |call| ops::rms_norm(&call.inputs[0], &call.params[0], EPS),
            |x| rms_norm(&x.inputs[0], &x.params[0], 0.0, f64::from(EPS)),
        ),
        Case::new(
            "layer_norm",
            [&x],
            [&[i], &[i]],
            |call| ops::layer_norm(&call.inputs[0], &call.params[0], Some(&call.params[1]), EPS),
            |x| layer_norm(&x.inputs[0], &x.params[0], Some(&x.params[1]), f64::from(EPS)),
        ),
        rope("rope", RopeStyle::Half),
        rope("rope, interleaved", RopeStyle::Interleaved),
        Case::new(
            "gated silu",
            [&x, &x],
            [],
            |call| ops::gated(&call.inputs[0], &call.inputs[1], ops::Activation::Silu),
            |x| Activation::Silu.gated(&x.inputs[0], &x.inputs[1]),
        ),
        Case::new(
            "add_residual",
            [&x, &x],
            [],
            |call| ops::add_residual(&ops::cast(&call.inputs[0], DType::F32)?, &call.inputs[1]),
            |x| x.inputs[0].plus(&x.inputs[1]),
        ),
        Case::new(
            "embedding",
            [],
            [&[v, i]],
            move |call| ops::embedding(&call.tape.input(&call.place.ints(&[b, s], v)?), &call.params[0]),
            move |x| x.params[0].select(0, &ints(b * s, v)).reshape(&[b, s, i]),
        ),
        Case::new(
            "embedding to f32",
            [],
            [&[v, i]],
            move |call| {
                let ids = call.tape.input(&call.place.ints(&[b, s], v)?);
                ops::embedding_to(&ids, &call.params[0], DType::F32)
            },
            move |x| x.params[0].select(0, &ints(b * s, v)).reshape(&[b, s, i]),
        ),
        Case::new(
            "a parameter, twice",
            [&x],
            [&[i]],
            |call| {
                let (x, param) = (&call.inputs[0], &call.params[0]);
                ops::add(&ops::mul(x, &ops::parameter(param, x)?)?, &ops::parameter(param, x)?)
            },
            |x| x.inputs[0].mul(&x.params[0]).plus(&x.params[0]),
        ),
        Case::new(
            "dropout",
            [&x],
            [],
            |call| ops::dropout(&call.inputs[0], DROPOUT.0, DROPOUT.1, DROPOUT.2),
            move |x| x.inputs[0].mul(&x.inputs[0].beside(&x.inputs[0].sizes, kept.clone())),
        ),
    ])
}

/// What dropout multiplies by: the bits of random numbers are defined by the CPU's kernel.
fn kept(sizes: &[usize]) -> Result<Vec<f64>> {
    let cpu = Device::cpu(Isa::detect(), Par::threads(1)?);
    let ones = Tensor::from_slice(&vec![1f32; sizes.iter().product()], sizes, &cpu)?;
    let kept = ops::dropout(&ones, DROPOUT.0, DROPOUT.1, DROPOUT.2)?.to_f32_vec()?;
    Ok(kept.into_iter().map(f64::from).collect())
}

/// Pairs of channels turned by the angle of their position: `[B, S, H, D]`.
pub(super) fn turned(x: &Array, style: RopeStyle) -> Array {
    let [_, s, h, d] = x.sizes[..] else { panic!("four dims, not {:?}", x.sizes) };
    let pairs = if style == RopeStyle::Half { Pairs::Halves } else { Pairs::Neighbors };
    rotated(x, pairs, d / 2, |head, pair| angle(FIRST + head / h % s, pair, d / 2, THETA))
}
