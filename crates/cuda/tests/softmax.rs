//! Softmax and its logarithm against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, values};

fn softmax<T: Float>(library: &Library, rows: usize, dim: usize) {
    let x: Vec<T> = values::<T>(1, rows * dim).iter().map(|x| T::of(3.0 * x.f64())).collect();
    let (dy, start) = (values::<T>(2, rows * dim), values::<T>(3, rows * dim));
    let (r, d, grid) = (rows as u32, dim as u32, geometry::rows(rows, dim));
    let dtype = [T::ELEMENT];
    let [(y, dx), (log_y, log_dx)] = in_every_order(library, |gpu| {
        ["softmax", "log_softmax"].map(|op| {
            let (x, y) = (gpu.buffer(&x), gpu.fresh::<T>(rows * dim));
            gpu.run(&format!("{op}_forward"), &dtype, grid, args![x, y, r, d]);
            let (dy, dx) = (gpu.buffer(&dy), gpu.buffer(&start));
            gpu.run(&format!("{op}_backward"), &dtype, grid, args![y, dy, dx, 1u32, r, d]);
            (y.read(), dx.read())
        })
    });
    let (x, dy) = (f64s(&x), f64s(&dy));
    let mut want = [vec![], vec![], vec![], vec![]];
    for row in 0..rows {
        let range = row * dim..(row + 1) * dim;
        let (x, dy) = (&x[range.clone()], &dy[range.clone()]);
        let log_sum = x.iter().map(|x| x.exp()).sum::<f64>().ln();
        // The backward passes begin from the rounded outputs.
        let (probs, logs) = (f64s(&y[range.clone()]), f64s(&log_y[range.clone()]));
        let dot: f64 = probs.iter().zip(dy).map(|(p, d)| p * d).sum();
        let sum: f64 = dy.iter().sum();
        for i in 0..dim {
            let start = start[row * dim + i].f64();
            want[0].push((x[i] - log_sum).exp());
            want[1].push(start + probs[i] * (dy[i] - dot));
            want[2].push(x[i] - log_sum);
            want[3].push(start + dy[i] - logs[i].exp() * sum);
        }
    }
    for (what, (got, want)) in [("y", &y), ("dx", &dx), ("log y", &log_y), ("log dx", &log_dx)]
        .into_iter()
        .zip(&want)
        .map(|((what, got), want)| (what, (got, want)))
    {
        assert_close(what, got, want, 2e-5 + 2.0 * T::ROUNDING);
    }
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    softmax::<f32>(library, 9, 33);
    softmax::<f32>(library, 2, 600);
    softmax::<f32>(library, 1, 4200);
    softmax::<f32>(library, 1, 1);
    softmax::<bf16>(library, 3, 64);
    softmax::<f16>(library, 3, 70);
}

#[test]
fn softmax_matches_the_reference() {
    on_emulator(check);
}
