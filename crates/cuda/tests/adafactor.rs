//! Steps of Adafactor against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, block_squares, f64s, values};

const SCALE: f64 = 0.5;
const EPS: [f64; 2] = [1e-3, 0.02];
const RATE: f64 = 0.05;
const KEEP: f64 = 0.999;

/// Numbers that are not negative.
fn variances(seed: u64, n: usize) -> Vec<f32> {
    values::<f32>(seed, n).iter().map(|x| x.abs()).collect()
}

fn blend(old: f64, new: f64, weight: f64) -> f64 {
    old + weight * (new - old)
}

/// A step with the weight of the new second moment, and the length from which on a direction is shortened.
fn step<T: Float>(
    library: &Library,
    [batch, rows, cols]: [usize; 3],
    [factored, relative]: [bool; 2],
    weight: f64,
    d: f64,
) {
    let n = batch * rows * cols;
    let [w, g] = [1, 2].map(|seed| values::<f32>(seed, n));
    let (row_var, col_var) = (variances(3, batch * rows), variances(4, batch * cols));
    let (got, working) = in_every_order(library, |gpu| {
        let weights = &w;
        let (w, g) = (gpu.buffer(&w), gpu.buffer(&g));
        let (row_var, col_var) = (gpu.buffer(&row_var), gpu.buffer(&col_var));
        let means = gpu.fresh::<f32>(batch);
        let [s, beta, eps1, eps2, rate, keep, d] =
            [SCALE, weight, EPS[0], EPS[1], RATE, KEEP, d].map(|x| x as f32);
        let [b, r, c] = [batch, rows, cols].map(|x| x as u32);
        if factored {
            let by_rows = geometry::rows(batch * rows, cols);
            gpu.run("adafactor_rows", &[], by_rows, args![g, row_var, s, beta, b * r, c]);
            let by_columns = geometry::columns(batch, cols);
            gpu.run("adafactor_columns", &[], by_columns, args![g, col_var, s, beta, b, r, c]);
            gpu.run("adafactor_means", &[], geometry::rows(batch, rows), args![row_var, means, eps1, b, r]);
        } else {
            gpu.run("adafactor_variance", &[], geometry::elements(n), args![col_var, g, s, beta, n as u64]);
        }
        let n_blocks = n.div_ceil(geometry::NORM_BLOCK);
        let (of_weights, of_direction) = (gpu.buffer(&block_squares(weights)), gpu.fresh::<f64>(n_blocks));
        let blocks = geometry::squared_norm(n);
        let rows_of: Option<&Buffer<f32>> = factored.then_some(&row_var);
        let means_of: Option<&Buffer<f32>> = factored.then_some(&means);
        let floor = eps1 * eps1;
        let args = args![g, rows_of, means_of, col_var, of_direction, s, floor, r, c, n as u64];
        gpu.run("adafactor_squares", &[], blocks, args);
        let (alpha, working) = (gpu.fresh::<f32>(1), gpu.fresh::<T>(n));
        let relative = u32::from(relative);
        let args = args![of_weights, of_direction, n_blocks as u64, rate, eps2, d, relative, alpha, n as u64];
        gpu.run("adafactor_alpha", &[], geometry::one_block(), args);
        let args = args![w, g, rows_of, means_of, col_var, alpha, working, s, floor, keep, r, c, n as u64];
        gpu.run("adafactor_apply", &[T::ELEMENT], geometry::elements(n), args);
        ([w.read(), row_var.read(), col_var.read()], working.read())
    });
    let [mut w, g, mut row_var, mut col_var] = [w, g, row_var, col_var].map(|x| f64s(&x));
    let square = |i: usize| (SCALE * g[i]).powi(2);
    let mut means = vec![0.0; batch];
    if factored {
        for (i, var) in row_var.iter_mut().enumerate() {
            *var = blend(*var, (0..cols).map(|c| square(i * cols + c)).sum::<f64>() / cols as f64, weight);
        }
        for (i, var) in col_var.iter_mut().enumerate() {
            let at = |r: usize| (i / cols * rows + r) * cols + i % cols;
            *var = blend(*var, (0..rows).map(|r| square(at(r))).sum::<f64>() / rows as f64, weight);
        }
        for (mean, var) in means.iter_mut().zip(row_var.chunks(rows)) {
            *mean = (var.iter().sum::<f64>() / rows as f64).max(EPS[0]);
        }
    } else {
        col_var.iter_mut().enumerate().for_each(|(i, var)| *var = blend(*var, square(i), weight));
    }
    let direction = |i: usize| {
        let (row, col) = (i / cols, i % cols);
        let factor = if factored { row_var[row] / means[row / rows] } else { 1.0 };
        SCALE * g[i] / (factor * col_var[row / rows * cols + col]).max(EPS[0] * EPS[0]).sqrt()
    };
    let u: Vec<f64> = (0..n).map(direction).collect();
    let size = |x: &[f64]| (x.iter().map(|x| x * x).sum::<f64>() / n as f64).sqrt();
    let alpha = if relative { size(&w).max(EPS[1]) } else { 1.0 } * RATE / (size(&u) / d).max(1.0);
    w.iter_mut().zip(&u).for_each(|(w, u)| *w = *w * KEEP - alpha * u);
    for (what, (got, want)) in
        ["weights", "rows", "columns"].iter().zip(got.iter().zip([w, row_var, col_var]))
    {
        assert_close(what, got, &want, 3e-6);
    }
    assert_eq!(working, got[0].iter().map(|w| T::of(f64::from(*w))).collect::<Vec<_>>());
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    step::<f32>(library, [2, 23, 37], [true, true], 0.3, 0.5);
    step::<f32>(library, [1, 1, 77], [false, true], 0.7, 100.0);
    step::<f32>(library, [1, 1, 77], [false, false], 0.7, 0.5);
    step::<bf16>(library, [1, 3, 1500], [true, false], 0.8, 100.0);
    step::<f16>(library, [1, 1030, 3], [true, true], 0.2, 1.0);
}

#[test]
fn steps_match_the_reference() {
    on_emulator(check);
}
