//! Losses, and the softmax in them.

use oarlock_reference::loss::{IGNORED, Weighting, token_losses};
use oarlock_reference::softmax::softmax;
use oarlock_tensor::ops::{self, HeadOptions, Labels, Reduction};
use oarlock_tensor::{Result, Tensor};

use super::shapes::Sizes;
use crate::commands::gpu_check::case::{Call, Case};
use oarlock_reference::formula::Array;

pub(super) fn cases(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, i, v, .. } = n;
    let (x, logits, n_rows) = ([b, s, i], [b, s, v], b * s);
    let head = move |name: &str| {
        Case::new(
            name,
            [&x[..]],
            [&[v, i][..]],
            move |call| {
                let labels = Labels::from_tensor(&labels(call, [b, s], v)?)?;
                let loss = ops::head_loss(&call.inputs[0], &call.params[0], &labels, HeadOptions::default())?;
                Ok(loss.loss)
            },
            move |x| {
                let logits = x.inputs[0].reshape(&[n_rows, i]).product(&x.params[0].permute([1, 0]));
                total_loss(&logits, &label_ids(n_rows, v))
            },
        )
    };
    vec![
        Case::new(
            "cross entropy",
            [&logits],
            [],
            move |call| ops::cross_entropy(&call.inputs[0], &labels(call, [b, s], v)?, -100, Reduction::Mean),
            move |x| {
                let labels = label_ids(n_rows, v);
                let n_targets = labels.iter().filter(|label| **label != IGNORED).count();
                total_loss(&x.inputs[0].reshape(&[n_rows, v]), &labels).times(1.0 / n_targets as f64)
            },
        ),
        head("head loss"),
        head("head loss, gradients at once").seeded(),
        Case::new(
            "softmax",
            [&logits],
            [],
            |call| ops::softmax(&call.inputs[0], -1),
            |x| softmax(&x.inputs[0]),
        ),
        Case::new(
            "log_softmax",
            [&logits],
            [],
            |call| ops::log_softmax(&call.inputs[0], -1),
            |x| x.inputs[0].log_softmax(),
        ),
    ]
}

/// A target for each row.
pub(super) fn labels(call: &Call<'_>, sizes: [usize; 2], vocab: usize) -> Result<Tensor> {
    Tensor::from_slice(&label_ids(sizes[0] * sizes[1], vocab), sizes, call.place.device)
}

/// The targets of rows; every fifth has none.
pub(super) fn label_ids(n: usize, vocab: usize) -> Vec<i32> {
    (0..n).map(|row| if row % 5 == 0 { IGNORED } else { (row * 31 % vocab) as i32 }).collect()
}

/// The sum of the losses of all rows, `[N, V]`.
pub(super) fn total_loss(logits: &Array, labels: &[i32]) -> Array {
    token_losses(logits, labels, 0.0, Weighting::None).sum_all()
}
