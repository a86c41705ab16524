//! Cross-entropy of rows with weights and smoothing, against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;
use oarlock_reference::formula::{Array, with_gradients};
use oarlock_reference::loss::{IGNORED, row_losses};

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, indices, magnitudes, values};

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
    labels[rows / 2] = IGNORED;
    let (x, dy) = (values::<f32>(2, rows * classes), values::<f32>(3, rows));
    let weight = magnitudes::<f32>(4, classes);
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
    let of_classes = f64s(&weight);
    let row = |[x]: &[Array; 1]| {
        let log_probs = if log_probs { x.clone() } else { x.log_softmax() };
        row_losses(&log_probs, &labels, weighted.then_some(&of_classes[..]), f64::from(smoothing))
    };
    let (want, [grads]) = with_gradients([(&[rows, classes], f64s(&x))], &f64s(&dy), row);
    let weight_of = |label: i32| if weighted { of_classes[label as usize] } else { 1.0 };
    let want_weights: Vec<f64> =
        labels.iter().map(|&label| if label == IGNORED { 0.0 } else { weight_of(label) }).collect();
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
