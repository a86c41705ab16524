//! Elementwise sums and conversions, and the bias of a linear layer.

use super::isa::multiversion;
use super::pieces::{TASK_ELEMS, cut, elementwise, for_pieces, task_rows};
use super::sums::{ROW_BLOCK, partial_rows, store_sum_of_rows};
use super::{Cpu, Store};
use crate::dtype::{Element, Float};

elementwise! {
    /// `out = x + y` with `y` of another type.
    pub fn add_mixed[T: Float]()(x: &[f32], y: &[T]) -> (out: &mut [f32]) {
        for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
            *out = *x + y.to_f32();
        }
    }
}

/// `y += x`.
pub fn add_assign<T: Float>(cpu: &Cpu, y: &mut [T], x: &[T]) {
    axpy(cpu, 1.0, x, y);
}

multiversion! {
    /// `y += x` in this thread.
    pub(crate) fn add_task[T: Float, U: Float](x: &[T], y: &mut [U]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = U::from_f32(y.to_f32() + x.to_f32());
        }
    }
}

elementwise! {
    /// `y += alpha * x`.
    pub fn axpy[T: Float, U: Float](alpha: f32)(x: &[U]) -> (y: &mut [T]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = T::from_f32(y.to_f32() + alpha * x.to_f32());
        }
    }
}

elementwise! {
    /// `x = x * alpha`, cut off at `-bound` and `bound`, which is at least 0; NaN stays.
    pub fn scale_clamp(alpha: f32, bound: f32)() -> (x: &mut [f32]) {
        for x in x {
            *x = (*x * alpha).clamp(-bound, bound);
        }
    }
}

elementwise! {
    /// `y = x` in another type, rounded to nearest.
    pub fn cast[T: Float, U: Float]()(x: &[T]) -> (y: &mut [U]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = U::from_f32(x.to_f32());
        }
    }
}

elementwise! {
    /// Integers as floats, rounded to nearest.
    pub fn from_integers[T: Float]()(x: &[i32]) -> (y: &mut [T]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = T::from_f32(*x as f32);
        }
    }
}

elementwise! {
    /// Floats as integers, rounded towards zero and kept inside their range; NaN becomes 0.
    pub fn to_integers[T: Float]()(x: &[T]) -> (y: &mut [i32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x.to_f32() as i32;
        }
    }
}

/// Every element becomes `value`.
pub fn fill<T: Element>(cpu: &Cpu, value: T, x: &mut [T]) {
    cpu.par.chunks_mut(x, TASK_ELEMS, |_, x| x.fill(value));
}

/// `x [rows, dim] += bias [dim]` in each row.
pub fn bias_add<T: Float>(cpu: &Cpu, x: &mut [T], bias: &[T]) {
    let dim = bias.len();
    assert!(dim > 0 && x.len().is_multiple_of(dim), "bias_add: rows of {dim}");
    cpu.par.chunks_mut(x, task_rows(dim) * dim, |_, x| bias_add_task(cpu.isa, x, bias));
}

multiversion! {
    fn bias_add_task[T: Float](x: &mut [T], bias: &[T]) {
        for row in x.chunks_exact_mut(bias.len()) {
            for (x, b) in row.iter_mut().zip(bias) {
                *x = T::from_f32(x.to_f32() + b.to_f32());
            }
        }
    }
}

/// The f32 elements of scratch that [`bias_grad`] needs.
pub fn bias_grad_scratch(rows: usize, dim: usize) -> usize {
    partial_rows(rows, dim)
}

/// The gradient of [`bias_add`] for the bias: the sum of the rows of `dy`, in the order of the norms' weights.
pub fn bias_grad<T: Float>(cpu: &Cpu, dy: &[T], (d_bias, store): (&mut [f32], Store), scratch: &mut [f32]) {
    let dim = d_bias.len();
    assert!(dim > 0 && dy.len().is_multiple_of(dim), "bias_grad: rows of {dim}");
    let rows = dy.len() / dim;
    let partials = &mut scratch[..bias_grad_scratch(rows, dim)];
    for_pieces(&cpu.par, rows.div_ceil(ROW_BLOCK), cut(partials, dim), |i, partial| {
        let from = i * ROW_BLOCK * dim;
        let to = dy.len().min(from + ROW_BLOCK * dim);
        bias_grad_block(cpu.isa, &dy[from..to], partial);
    });
    store_sum_of_rows(cpu, partials, d_bias, store);
}

multiversion! {
    fn bias_grad_block[T: Float](dy: &[T], d_bias: &mut [f32]) {
        d_bias.fill(0.0);
        for row in dy.chunks_exact(d_bias.len()) {
            for (sum, dy) in d_bias.iter_mut().zip(row) {
                *sum += dy.to_f32();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, f64s, same_everywhere, values};
    use crate::dtype::{bf16, f16};

    #[test]
    fn scaled_elements_are_cut_off_and_nan_stays() {
        let mut x = values::<f32>(3, 1000);
        x.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0]);
        let got = same_everywhere(|cpu| {
            let mut y = x.clone();
            scale_clamp(cpu, 0.5, 0.25, &mut y);
            // NaN differs from itself.
            assert!(y[1000].is_nan());
            y[1000] = 0.0;
            y
        });
        let expected: Vec<f32> = x.iter().map(|x| (x * 0.5).clamp(-0.25, 0.25)).collect();
        assert_eq!(got[..1000], expected[..1000]);
        assert!(got[..1000].contains(&0.25) && got[..1000].iter().any(|x| x.abs() < 0.25));
        assert_eq!(
            got[1001..].iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            [0.25f32, -0.25, -0.0].map(f32::to_bits)
        );
    }

    fn check<T: Float>(n: usize, tolerance: f64) {
        let (x, y) = (values::<T>(1, n), values::<T>(2, n));
        let outs = same_everywhere(|cpu| {
            let mut outs = [y.clone(), y.clone(), y.clone()];
            add_assign(cpu, &mut outs[0], &x);
            axpy(cpu, -0.7, &x, &mut outs[1]);
            fill(cpu, T::from_f32(0.5), &mut outs[2]);
            outs
        });
        let formulas: [fn(f64, f64) -> f64; 3] = [|x, y| x + y, |x, y| y - 0.7 * x, |_, _| 0.5];
        for (out, formula) in outs.iter().zip(formulas) {
            let want: Vec<f64> = f64s(&x).iter().zip(f64s(&y)).map(|(x, y)| formula(*x, y)).collect();
            assert_close(out, &want, tolerance);
        }
    }

    #[test]
    fn elementwise_ops_match_their_formulas() {
        for n in [0, 1, 77, TASK_ELEMS + 3] {
            check::<f32>(n, 2e-7);
            check::<bf16>(n, 4e-3);
            check::<f16>(n, 5e-4);
        }
    }

    #[test]
    fn casts_round_once() {
        let x = values::<f32>(1, TASK_ELEMS + 7);
        let (halves, back) = same_everywhere(|cpu| {
            let (mut halves, mut back) = (vec![bf16::ZERO; x.len()], x.clone());
            cast(cpu, &x, &mut halves);
            cast(cpu, &halves, &mut back);
            (halves, back)
        });
        assert!(halves.iter().zip(&x).all(|(h, x)| *h == bf16::from_f32(*x)));
        assert!(back.iter().zip(&halves).all(|(b, h)| *b == h.to_f32()));
    }

    #[test]
    fn bias_and_its_gradient() {
        let (rows, dim) = (77, 35);
        let (x, bias) = (values::<bf16>(1, rows * dim), values::<bf16>(2, dim));
        let (y, written, added) = same_everywhere(|cpu| {
            let (mut y, mut scratch) = (x.clone(), vec![f32::NAN; bias_grad_scratch(rows, dim)]);
            bias_add(cpu, &mut y, &bias);
            let (mut written, mut added) = (vec![f32::NAN; dim], vec![1.0; dim]);
            bias_grad(cpu, &x, (&mut written, Store::Overwrite), &mut scratch);
            bias_grad(cpu, &x, (&mut added, Store::Add), &mut scratch);
            (y, written, added)
        });
        let (x, bias) = (f64s(&x), f64s(&bias));
        assert_close(&y, &x.iter().enumerate().map(|(i, x)| x + bias[i % dim]).collect::<Vec<_>>(), 4e-3);
        let sums: Vec<f64> = (0..dim).map(|j| x.iter().skip(j).step_by(dim).sum()).collect();
        assert_close(&written, &sums, 1e-6);
        assert_close(&added, &sums.iter().map(|s| s + 1.0).collect::<Vec<_>>(), 1e-6);
    }
}
