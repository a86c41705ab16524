//! Products of matrices.

use oarlock_tensor::ops::{self, WeightLayout};

use super::shapes::Sizes;
use crate::commands::gpu_check::case::Case;

pub(super) fn cases(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, i, .. } = n;
    let (x, wide) = ([b, s, i], 2 * i + 8);
    let (weight, rows, y) = ([wide, i], [b * s, i], [b, s, wide]);
    vec![
        Case::new(
            "linear",
            [&x],
            [&weight],
            |call| ops::linear(&call.inputs[0], &call.params[0], None, WeightLayout::OutIn),
            move |x| x.inputs[0].reshape(&rows).product(&x.params[0].permute([1, 0])).reshape(&y),
        ),
        Case::new(
            "linear with a bias",
            [&x],
            [&weight, &[wide]],
            |call| ops::linear(&call.inputs[0], &call.params[0], Some(&call.params[1]), WeightLayout::OutIn),
            move |x| {
                let product = x.inputs[0].reshape(&rows).product(&x.params[0].permute([1, 0]));
                product.plus(&x.params[1]).reshape(&y)
            },
        ),
        Case::new(
            "linear, weight [in, out]",
            [&x],
            [&[i, wide]],
            |call| ops::linear(&call.inputs[0], &call.params[0], None, WeightLayout::InOut),
            move |x| x.inputs[0].reshape(&rows).product(&x.params[0]).reshape(&y),
        ),
        Case::new(
            "matmul",
            [&x, &[b, i, s]],
            [],
            |call| ops::matmul(&call.inputs[0], &call.inputs[1]),
            |x| x.inputs[0].product(&x.inputs[1]),
        ),
        Case::new(
            "matmul, transposed",
            [&x, &[b, s + 8, i]],
            [],
            |call| ops::matmul_transposed(&call.inputs[0], &call.inputs[1], ops::Transposed::Right),
            |x| x.inputs[0].product(&x.inputs[1].permute([0, 2, 1])),
        ),
    ]
}
