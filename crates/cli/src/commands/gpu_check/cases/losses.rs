//! Losses, and the softmax in them.

use oarlock_tensor::ops::{self, HeadOptions, Labels, Reduction};
use oarlock_tensor::{Result, Tensor};

use super::{Array, Call, Case, Sizes};

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
            move |x| total_loss(&x.inputs[0].reshape(&[n_rows, i]).product(&x.params[0].permute([1, 0]))),
        )
    };
    vec![
        Case::new(
            "cross entropy",
            [&logits],
            [],
            move |call| ops::cross_entropy(&call.inputs[0], &labels(call, [b, s], v)?, -100, Reduction::Mean),
            move |x| {
                let n_targets = (0..n_rows).filter_map(|row| label(row, v)).count();
                total_loss(&x.inputs[0].reshape(&[n_rows, v])).times(1.0 / n_targets as f64)
            },
        ),
        head("head loss"),
        head("head loss, gradients at once").seeded(),
        Case::new(
            "softmax",
            [&logits],
            [],
            |call| ops::softmax(&call.inputs[0], -1),
            |x| x.inputs[0].log_softmax().exp(),
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
    let ids = (0..sizes[0] * sizes[1]).map(|at| label(at, vocab).map_or(-100, |label| label as i32));
    Tensor::from_slice(&ids.collect::<Vec<_>>(), sizes, call.place.device)
}

/// The target of a row; every fifth has none.
pub(super) fn label(row: usize, vocab: usize) -> Option<usize> {
    (!row.is_multiple_of(5)).then_some(row * 31 % vocab)
}

/// The sum of the losses of all rows, `[N, V]`.
pub(super) fn total_loss(logits: &Array) -> Array {
    let [n, v] = logits.sizes[..] else { panic!("rows, not {:?}", logits.sizes) };
    let of_labels: Vec<usize> = (0..n).filter_map(|row| Some(row * v + label(row, v)?)).collect();
    logits.log_softmax().pick(&[of_labels.len()], of_labels).sum_all().times(-1.0)
}
