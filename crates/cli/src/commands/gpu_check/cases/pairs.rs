//! Losses of pairs and of rows, and the other losses of the head.

use oarlock_reference::loss::{Weighting, soft_cap, token_losses};
use oarlock_tensor::ops::{
    self, HeadOptions, KlReduction, KlTarget, Labels, Reduction, RowLossOptions, TokenLoss,
};
use oarlock_tensor::{Result, Tensor};

use super::losses::{label_ids, labels};
use super::shapes::Sizes;
use crate::commands::gpu_check::case::Case;
use oarlock_reference::formula::Array;

/// Smoothing of labels, and the soft cap of logits.
const SMOOTHING: f32 = 0.1;
const CAP: f32 = 1.5;
/// What losses are multiplied by, as in training with f16, which has no gradients of the size of a squared probability.
const LOSS_SCALE: f32 = 256.0;

pub(super) fn cases(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, i, v, .. } = n;
    let (x, n_rows) = ([b, s, i], b * s);
    type Pair = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let pair = |name: &str, op: Pair, formula: fn(&Array, &Array) -> Array| {
        Case::new(
            name,
            [&x, &x],
            [],
            move |call| op(&call.inputs[0], &call.inputs[1]),
            move |x| formula(&x.inputs[0], &x.inputs[1]),
        )
    };
    let head = move |name: &str, kind: TokenLoss, smoothing: f32, weighting: Weighting| {
        Case::new(
            name,
            [&x[..]],
            [&[v, i][..]],
            move |call| {
                let labels = Labels::from_tensor(&labels(call, [b, s], v)?)?;
                let options = HeadOptions { logit_cap: Some(CAP) };
                let (x, weight) = (&call.inputs[0], &call.params[0]);
                ops::mul(&ops::head_token_loss(x, weight, &labels, options, kind)?.loss, LOSS_SCALE)
            },
            move |x| {
                let logits = x.inputs[0].reshape(&[n_rows, i]).product(&x.params[0].permute([1, 0]));
                let logits = soft_cap(&logits, Some(f64::from(CAP)));
                let losses = token_losses(&logits, &label_ids(n_rows, v), f64::from(smoothing), weighting);
                losses.sum_all().times(f64::from(LOSS_SCALE))
            },
        )
    };
    vec![
        pair(
            "mse_loss, mean",
            |x, y| ops::mse_loss(x, y, Reduction::Mean),
            |x, y| x.minus(y).map(|d| d * d, |d| 2.0 * d).sum_all().times(1.0 / x.values.len() as f64),
        ),
        pair(
            "huber_loss of each",
            |x, y| ops::huber_loss(x, y, 0.75, Reduction::None),
            |x, y| {
                let slope = |d: f64| d.clamp(-0.75, 0.75);
                let loss = |d: f64| if d.abs() < 0.75 { d * d / 2.0 } else { 0.75 * (d.abs() - 0.375) };
                x.minus(y).map(loss, slope)
            },
        ),
        pair(
            "kl_div",
            |x, y| ops::kl_div(x, y, KlTarget::LogProbs, KlReduction::Sum),
            |x, y| y.exp().mul(&y.minus(x)).sum_all(),
        ),
        Case::new(
            "row losses",
            [&[b, s, v]],
            [],
            move |call| {
                let options = RowLossOptions {
                    ignore_index: -100,
                    weight: None,
                    label_smoothing: SMOOTHING,
                    log_probs: false,
                };
                Ok(ops::row_losses(&call.inputs[0], &labels(call, [b, s], v)?, &options)?.losses)
            },
            move |x| {
                let logits = x.inputs[0].reshape(&[n_rows, v]);
                let labels = label_ids(n_rows, v);
                token_losses(&logits, &labels, f64::from(SMOOTHING), Weighting::None).reshape(&[b, s])
            },
        ),
        head("head loss, smoothed labels", TokenLoss::Smoothed(SMOOTHING), SMOOTHING, Weighting::None),
        head("head loss by probability", TokenLoss::ByProbability, 0.0, Weighting::ByProbability),
        Case::new(
            "log-probabilities by the head",
            [&x[..]],
            [&[v, i][..]],
            move |call| {
                let labels = Labels::from_tensor(&labels(call, [b, s], v)?)?;
                let options = HeadOptions { logit_cap: None };
                ops::head_log_probs(&call.inputs[0], &call.params[0], &labels, options)
            },
            move |x| {
                let logits = x.inputs[0].reshape(&[n_rows, i]).product(&x.params[0].permute([1, 0]));
                let losses = token_losses(&logits, &label_ids(n_rows, v), 0.0, Weighting::None);
                losses.times(-1.0).reshape(&[b, s])
            },
        ),
    ]
}
