//! What takes the outputs of one product as they lie, and what is computed again for another one.

use std::sync::Arc;

use oarlock_reference::function::Activation;
use oarlock_reference::norm::rms_norm;
use oarlock_tensor::RopeScaling;
use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::ops::{self, AttentionOptions, Mask, QkvHeads, Rope, WeightLayout};

use super::attention::{MaskKind, attention};
use super::decoders::{EPS, FIRST, THETA, turned};
use super::shapes::Sizes;
use crate::commands::gpu_check::case::Case;

pub(super) fn cases(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, h, g, heads: [d, _], i, .. } = n;
    let (x, rows, y) = ([b, s, i], [b * s, i], [b, s, 2 * i]);
    let scale = (1.0 / d as f32).sqrt();
    vec![
        Case::new(
            "gated silu of one product",
            [&y],
            [],
            |call| ops::gated_fused(&call.inputs[0], ops::Activation::Silu),
            move |x| {
                let half = |first: usize| x.inputs[0].select(2, &(first..first + i).collect::<Vec<_>>());
                Activation::Silu.gated(&half(0), &half(i))
            },
        ),
        Case::new(
            "attention of one product",
            [&[b, s, (h + 2 * g) * d]],
            [],
            move |call| {
                let rope = Rope::new(THETA, d, RopeStyle::Half, RopeScaling::None, s + FIRST)?;
                let (heads, options) =
                    (QkvHeads { heads: h, kv_heads: g, head_dim: d }, AttentionOptions::new(scale));
                ops::attention_fused(&call.inputs[0], heads, &Arc::new(rope), FIRST, &Mask::Causal, &options)
            },
            move |x| {
                let part = |first: usize, n: usize| {
                    let columns: Vec<usize> = (first * d..(first + n) * d).collect();
                    x.inputs[0].select(2, &columns).reshape(&[b, s, n, d])
                };
                let half = |first, n| turned(&part(first, n), RopeStyle::Half);
                attention(&[half(0, h), half(h, g), part(h + g, g)], f64::from(scale), MaskKind::Causal)
            },
        ),
        // Both products need the output of the norm in their backward passes, so that the norm's own cannot give it.
        Case::new(
            "rms_norm of two products",
            [&x],
            [&[i], &[2 * i, i]],
            |call| {
                let h = ops::rms_norm(&call.inputs[0], &call.params[0], EPS)?;
                let product = || ops::linear(&h, &call.params[1], None, WeightLayout::OutIn);
                ops::add(&product()?, &product()?)
            },
            move |x| {
                let normed = rms_norm(&x.inputs[0], &x.params[0], 0.0, f64::from(EPS)).reshape(&rows);
                normed.product(&x.params[1].permute([1, 0])).times(2.0).reshape(&y)
            },
        ),
        // One does, and the norm's backward pass gives it.
        Case::new(
            "rms_norm of one product",
            [&x],
            [&[i], &[2 * i, i]],
            |call| {
                let h = ops::rms_norm(&call.inputs[0], &call.params[0], EPS)?;
                ops::linear(&h, &call.params[1], None, WeightLayout::OutIn)
            },
            move |x| {
                let normed = rms_norm(&x.inputs[0], &x.params[0], 0.0, f64::from(EPS)).reshape(&rows);
                normed.product(&x.params[1].permute([1, 0])).reshape(&y)
            },
        ),
    ]
}
