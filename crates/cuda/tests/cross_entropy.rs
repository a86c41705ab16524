//! Losses of rows of logits, and their gradients, against f64.

use half::{bf16, f16};
use oarlock_cuda::functions::TokenLoss;
use oarlock_cuda::geometry;
use oarlock_reference::loss::{Case, SHAPES, Weighting};

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, f64s, indices, values};

const SMOOTHING: f32 = 0.125;

fn losses<T: Float, D: Float>(library: &Library, kind: TokenLoss, shape: [usize; 2], cap: Option<f32>) {
    let smoothing = if kind == TokenLoss::Smoothed { SMOOTHING } else { 0.0 };
    let weighting = if kind == TokenLoss::ByProbability { Weighting::ByProbability } else { Weighting::None };
    let c = Case::<T>::new(shape, 1.0, cap, smoothing, weighting);
    let (n, v, k, n_logits) = (c.rows as u32, c.vocab as u32, kind as u32, c.logits.len());
    let (alone, log_probs, loss, even, by_row) = in_every_order(library, |gpu| {
        let (x, y, scales) = (gpu.buffer(&c.logits), gpu.buffer(&c.labels), gpu.buffer(&c.scales));
        let grid = geometry::losses(c.rows);
        let [alone, log_probs, loss] = [(); 3].map(|()| gpu.fresh::<f32>(c.rows));
        gpu.run("token_loss", &[T::ELEMENT], grid, args![x, y, k, SMOOTHING, alone, n, v]);
        gpu.run("label_log_probs", &[T::ELEMENT], grid, args![x, y, log_probs, n, v]);
        let (even, by_row) = (gpu.fresh::<D>(n_logits), gpu.fresh::<D>(n_logits));
        let dtypes = [T::ELEMENT, D::ELEMENT];
        for (scales, grad) in [(None, &even), (Some(&scales), &by_row)] {
            let args = args![x, y, k, smoothing, 0.5f32, scales, cap.unwrap_or(0.0), loss, grad, n, v];
            gpu.run("token_loss_grad", &dtypes, grid, args);
        }
        (alone.read(), log_probs.read(), loss.read(), even.read(), by_row.read())
    });
    c.check_losses(&alone);
    c.check_losses(&loss);
    c.check_log_probs(&log_probs);
    c.check_gradient(&even, Some(0.5));
    c.check_gradient(&by_row, None);
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
        SHAPES.iter().for_each(|shape| losses::<f32, f32>(library, kind, *shape, None));
        losses::<f32, f32>(library, kind, [3, 2500], Some(5.0));
    }
    losses::<f32, bf16>(library, CrossEntropy, [4, 104], None);
    losses::<f32, f16>(library, CrossEntropy, [4, 57], None);
    losses::<bf16, bf16>(library, Smoothed, [3, 2064], None);
    losses::<f16, f16>(library, CrossEntropy, [1, 9], Some(4.0));
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
