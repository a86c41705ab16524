//! Cross-entropy of rows with weights and smoothing, against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, indices, values};

#[derive(Clone, Copy)]
struct Case {
    rows: usize,
    classes: usize,
    weighted: bool,
    smoothing: f32,
    log_probs: bool,
}

fn compare<T: Float>(library: &Library, case: Case) {
    let Case { rows, classes, weighted, smoothing, log_probs } = case;
    let mut labels = indices(1, rows, classes);
    labels[rows / 2] = -100;
    let (x, dy) = (values::<f32>(2, rows * classes), values::<f32>(3, rows));
    let weight: Vec<f32> = values::<f32>(4, classes).iter().map(|w| w.abs()).collect();
    let (losses, weights, dx) = in_every_order(library, |gpu| {
        let (x, labels, dy) = (gpu.buffer(&x), gpu.buffer(&labels), gpu.buffer(&dy));
        let (losses, weights, dx) =
            (gpu.fresh::<f32>(rows), gpu.fresh::<f32>(rows), gpu.fresh::<T>(rows * classes));
        let weight = gpu.buffer(&weight);
        let weight: Option<&Buffer<f32>> = weighted.then_some(&weight);
        let (logs, n, dim) = (u32::from(log_probs), rows as u32, classes as u32);
        let launch = geometry::losses(rows);
        gpu.run("row_loss", &[], launch, args![x, labels, weight, smoothing, logs, losses, weights, n, dim]);
        let args = args![x, labels, weight, smoothing, logs, dy, dx, n, dim];
        gpu.run("row_loss_grad", &[T::ELEMENT], launch, args);
        (losses.read(), weights.read(), dx.read())
    });
    let weight = if weighted { f64s(&weight) } else { vec![1.0; classes] };
    let (smoothing, dim) = (f64::from(smoothing), classes as f64);
    let [mut want, mut want_weights, mut grads] = [vec![], vec![], vec![]];
    for ((x, &label), dy) in f64s(&x).chunks(classes).zip(&labels).zip(f64s(&dy)) {
        if label == -100 {
            want.push(0.0);
            want_weights.push(0.0);
            grads.extend(vec![0.0; classes]);
            continue;
        }
        let label = label as usize;
        let log_sum = if log_probs { 0.0 } else { x.iter().map(|x| x.exp()).sum::<f64>().ln() };
        let share = |c: usize| {
            smoothing / dim * weight[c] + if c == label { (1.0 - smoothing) * weight[c] } else { 0.0 }
        };
        want.push((0..classes).map(|c| share(c) * (log_sum - x[c])).sum());
        want_weights.push(weight[label]);
        let all: f64 = (0..classes).map(share).sum();
        let prob = |c: usize| if log_probs { 0.0 } else { (x[c] - log_sum).exp() };
        grads.extend((0..classes).map(|c| dy * (all * prob(c) - share(c))));
    }
    assert_close("losses", &losses, &want, 3e-6);
    assert_close("weights", &weights, &want_weights, 0.0);
    assert_close("gradient", &dx, &grads, T::ROUNDING.max(2e-6));
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    let base = Case { rows: 5, classes: 300, weighted: true, smoothing: 0.1, log_probs: false };
    compare::<f32>(library, base);
    compare::<f32>(library, Case { weighted: false, classes: 8, ..base });
    compare::<f32>(library, Case { smoothing: 0.0, log_probs: true, classes: 7, ..base });
    compare::<bf16>(library, Case { log_probs: true, ..base });
    compare::<f16>(library, Case { smoothing: 0.0, weighted: false, classes: 9, ..base });
}

#[test]
fn losses_match_the_reference() {
    on_emulator(check);
}
