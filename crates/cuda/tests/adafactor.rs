//! Steps of Adafactor against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;
use oarlock_reference::optimizer::{Adafactor, Args, Case, Rule};
use oarlock_reference::reduce::block_squares;

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, f64s};

const SCALE: f64 = 0.5;
const EPS: [f64; 2] = [1e-3, 0.02];
const RATE: f64 = 0.05;
const KEEP: f64 = 0.999;

/// A step with the weight of the new second moment, and the length from which on a direction is shortened.
fn step<T: Float>(
    library: &Library,
    [batch, rows, cols]: [usize; 3],
    [factored, relative]: [bool; 2],
    weight: f64,
    d: f64,
) {
    let n = batch * rows * cols;
    let (sizes, lens) = if factored {
        (vec![batch, rows, cols], [batch * rows, batch * cols, 0])
    } else {
        (vec![n], [0, 0, n])
    };
    let c = Case::new(&sizes, lens, false);
    let (w, row_var, col_var, working) = in_every_order(library, |gpu| {
        let (w, g) = (gpu.buffer(&c.weights), gpu.buffer(&c.grad));
        let row_var = gpu.buffer(&c.states[0]);
        let col_var = gpu.buffer(&c.states[if factored { 1 } else { 2 }]);
        let means = gpu.fresh::<f32>(batch);
        let [s, beta, eps1, eps2, rate, keep, d] =
            [SCALE, weight, EPS[0], EPS[1], RATE, KEEP, d].map(|x| x as f32);
        let [b, r, width] = [batch, rows, cols].map(|x| x as u32);
        if factored {
            let by_rows = geometry::rows(batch * rows, cols);
            gpu.run("adafactor_rows", &[], by_rows, args![g, row_var, s, beta, b * r, width]);
            let by_columns = geometry::columns(batch, cols);
            gpu.run("adafactor_columns", &[], by_columns, args![g, col_var, s, beta, b, r, width]);
            gpu.run("adafactor_means", &[], geometry::rows(batch, rows), args![row_var, means, eps1, b, r]);
        } else {
            gpu.run("adafactor_variance", &[], geometry::elements(n), args![col_var, g, s, beta, n as u64]);
        }
        let n_blocks = n.div_ceil(geometry::NORM_BLOCK);
        let of_weights = gpu.buffer(&block_squares(&f64s(&c.weights), geometry::NORM_BLOCK));
        let of_direction = gpu.fresh::<f64>(n_blocks);
        let blocks = geometry::squared_norm(n);
        let rows_of: Option<&Buffer<f32>> = factored.then_some(&row_var);
        let means_of: Option<&Buffer<f32>> = factored.then_some(&means);
        let floor = eps1 * eps1;
        let args = args![g, rows_of, means_of, col_var, of_direction, s, floor, r, width, n as u64];
        gpu.run("adafactor_squares", &[], blocks, args);
        let (alpha, working) = (gpu.fresh::<f32>(1), gpu.fresh::<T>(n));
        let is_relative = u32::from(relative);
        let args =
            args![of_weights, of_direction, n_blocks as u64, rate, eps2, d, is_relative, alpha, n as u64];
        gpu.run("adafactor_alpha", &[], geometry::one_block(), args);
        let args =
            args![w, g, rows_of, means_of, col_var, alpha, working, s, floor, keep, r, width, n as u64];
        gpu.run("adafactor_apply", &[T::ELEMENT], geometry::elements(n), args);
        (w.read(), row_var.read(), col_var.read(), working.read())
    });
    let rule = Adafactor { share: weight, eps: EPS, floor: EPS[0] * EPS[0], d, relative, rate: RATE };
    let args = Args { step: 2, lr: 1.0 - KEEP, weight_decay: 1.0, grad_scale: SCALE };
    let states: [&[f32]; 3] = if factored { [&row_var, &col_var, &[]] } else { [&[], &[], &col_var] };
    c.check((&Rule::Adafactor(rule), &args), &w, states, &working, 3e-6);
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
