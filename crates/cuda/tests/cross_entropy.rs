//! Losses of rows of logits, and their gradients, against f64.

use half::{bf16, f16};
use oarlock_cuda::functions::TokenLoss;
use oarlock_cuda::geometry;

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, indices, values};

const IGNORE: i32 = -100;
const SMOOTHING: f32 = 0.125;

/// The loss of a row and its gradient.
fn reference(kind: TokenLoss, x: &[f64], label: i32, cap: f64) -> (f64, Vec<f64>) {
    if label == IGNORE {
        return (0.0, vec![0.0; x.len()]);
    }
    let (label, n) = (label as usize, x.len() as f64);
    let log_sum = x.iter().map(|x| x.exp()).sum::<f64>().ln();
    let plain = log_sum - x[label];
    let s = if kind == TokenLoss::Smoothed { f64::from(SMOOTHING) } else { 0.0 };
    let weight = if kind == TokenLoss::ByProbability { (-plain).exp() } else { 1.0 };
    let even = x.iter().map(|x| log_sum - x).sum::<f64>() / n;
    let loss = weight * ((1.0 - s) * plain + s * even);
    let slope = |x: f64| if cap == 0.0 { 1.0 } else { 1.0 - (x / cap).powi(2) };
    let target = |i: usize| if i == label { 1.0 - s + s / n } else { s / n };
    (
        loss,
        x.iter().enumerate().map(|(i, &x)| weight * ((x - log_sum).exp() - target(i)) * slope(x)).collect(),
    )
}

fn losses<T: Float, D: Float>(library: &Library, kind: TokenLoss, rows: usize, vocab: usize, cap: f32) {
    let logits = values::<T>(1, rows * vocab);
    let mut labels = indices(2, rows, vocab);
    labels[rows / 2] = IGNORE;
    let scales = values::<f32>(3, rows);
    let (n, v, k) = (rows as u32, vocab as u32, kind as u32);
    let (alone, log_probs, loss, grad, by_row) = in_every_order(library, |gpu| {
        let (x, y, scales) = (gpu.buffer(&logits), gpu.buffer(&labels), gpu.buffer(&scales));
        let grid = geometry::losses(rows);
        let (alone, log_probs, loss) =
            (gpu.fresh::<f32>(rows), gpu.fresh::<f32>(rows), gpu.fresh::<f32>(rows));
        gpu.run("token_loss", &[T::ELEMENT], grid, args![x, y, k, SMOOTHING, alone, n, v]);
        gpu.run("label_log_probs", &[T::ELEMENT], grid, args![x, y, log_probs, n, v]);
        let smoothing = if kind == TokenLoss::Smoothed { SMOOTHING } else { 0.0 };
        let (grad, by_row) = (gpu.fresh::<D>(rows * vocab), gpu.fresh::<D>(rows * vocab));
        let dtypes = [T::ELEMENT, D::ELEMENT];
        for (scales, grad) in [(None, &grad), (Some(&scales), &by_row)] {
            let args = args![x, y, k, smoothing, 0.5f32, scales, cap, loss, grad, n, v];
            gpu.run("token_loss_grad", &dtypes, grid, args);
        }
        (alone.read(), log_probs.read(), loss.read(), grad.read(), by_row.read())
    });
    let x = f64s(&logits);
    let want: Vec<_> =
        x.chunks(vocab).zip(&labels).map(|(x, &label)| reference(kind, x, label, f64::from(cap))).collect();
    let want_losses: Vec<f64> = want.iter().map(|(loss, _)| *loss).collect();
    assert_close("loss", &alone, &want_losses, 2e-6);
    assert_close("loss with gradient", &loss, &want_losses, 2e-6);
    let plain =
        x.chunks(vocab).zip(&labels).map(|(x, &label)| -reference(TokenLoss::CrossEntropy, x, label, 0.0).0);
    assert_close("log-probability", &log_probs, &plain.collect::<Vec<_>>(), 2e-6);
    let scaled = |scale: &dyn Fn(usize) -> f64| -> Vec<f64> {
        want.iter()
            .enumerate()
            .flat_map(|(row, (_, grad))| grad.iter().map(|g| g * scale(row)).collect::<Vec<_>>())
            .collect()
    };
    assert_close("gradient", &grad, &scaled(&|_| 0.5), 1e-6 + D::ROUNDING);
    assert_close("gradient by row", &by_row, &scaled(&|row| f64::from(scales[row])), 2e-6 + D::ROUNDING);
}

/// The sum of the losses, or their mean over the rows that have one.
fn total(library: &Library, n: usize, n_ignored: usize) {
    let losses = values::<f32>(5, n);
    let labels: Vec<i32> = (0..n).map(|i| if i < n_ignored { -100 } else { 3 }).collect();
    for is_mean in [false, true] {
        let (exact, loss, scale) = in_every_order(library, |gpu| {
            let (losses, labels) = (gpu.buffer(&losses), gpu.buffer(&labels));
            let (exact, loss, scale) = (gpu.fresh::<f64>(1), gpu.fresh::<f32>(1), gpu.fresh::<f32>(1));
            let labels: Option<&Buffer<i32>> = is_mean.then_some(&labels);
            let args = args![losses, labels, Some(&exact), loss, Some(&scale), n as u32];
            gpu.run("total_loss", &[], geometry::one_block(), args);
            let again = gpu.fresh::<f32>(1);
            let (no_sum, no_scale) = (None::<&Buffer<f64>>, None::<&Buffer<f32>>);
            let args = args![losses, labels, no_sum, again, no_scale, n as u32];
            gpu.run("total_loss", &[], geometry::one_block(), args);
            assert_eq!(again.read(), loss.read());
            (exact.read()[0], loss.read()[0], scale.read()[0])
        });
        let factor = if is_mean { 1.0 / (n - n_ignored).max(1) as f64 } else { 1.0 };
        let want = f64s(&losses).iter().sum::<f64>() * factor;
        assert!((exact - want).abs() <= 1e-12 * (1.0 + want.abs()), "{exact}, want {want}");
        assert_eq!((loss, scale), (exact as f32, factor as f32));
    }
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    total(library, 700, 90);
    total(library, 3, 3);
    use TokenLoss::*;
    for kind in [CrossEntropy, Smoothed, ByProbability] {
        losses::<f32, f32>(library, kind, 5, 33, 0.0);
        losses::<f32, f32>(library, kind, 3, 2500, 5.0);
    }
    losses::<f32, bf16>(library, CrossEntropy, 4, 104, 0.0);
    losses::<f32, f16>(library, CrossEntropy, 4, 57, 0.0);
    losses::<bf16, bf16>(library, Smoothed, 3, 2064, 0.0);
    losses::<f16, f16>(library, CrossEntropy, 1, 9, 4.0);
}

#[test]
fn losses_match_the_reference() {
    on_emulator(check);
}

#[test]
fn a_gradient_may_overwrite_its_logits() {
    on_emulator(|library| {
        let (rows, vocab) = (3usize, 2500usize);
        let (logits, labels) = (values::<f32>(1, rows * vocab), indices(2, rows, vocab));
        let (n, v, k) = (rows as u32, vocab as u32, TokenLoss::Smoothed as u32);
        in_every_order(library, |gpu| {
            let (x, y, loss) = (gpu.buffer(&logits), gpu.buffer(&labels), gpu.fresh::<f32>(rows));
            let (apart, dtypes) = (gpu.fresh::<f32>(rows * vocab), [x.arg().element(), x.arg().element()]);
            for to in [&apart, &x] {
                let none = None::<&crate::emulator::Buffer<f32>>;
                let args = args![x, y, k, SMOOTHING, 1f32, none, 0f32, loss, to, n, v];
                gpu.run("token_loss_grad", &dtypes, geometry::losses(rows), args);
            }
            assert_eq!(apart.read(), x.read());
        });
    });
}
