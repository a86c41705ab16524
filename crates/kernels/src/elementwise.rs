//! Elementwise sums and conversions, and the bias of a linear layer.

use crate::dtype::{Element, Float, bf16, f16};
use crate::instances::instances;
use crate::isa::multiversion;
use crate::pieces::{TASK_ELEMS, cut, elementwise, for_pieces, task_rows};
use crate::sums::{ROW_BLOCK, partial_rows, store_sum_of_rows};
use crate::{Cpu, Store};

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
    pub fn axpy[T: Float, U: Float; [f32, f32] [f32, bf16] [f32, f16] [bf16, bf16] [f16, f16]](
        alpha: f32
    )(x: &[U]) -> (y: &mut [T]) {
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
    /// Floats as integers, rounded toward zero and kept inside their range; NaN becomes 0.
    pub fn to_integers[T: Float]()(x: &[T]) -> (y: &mut [i32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x.to_f32() as i32;
        }
    }
}

instances! {
    /// Every element becomes `value`.
    pub fn fill[T: Element](cpu: &Cpu, value: T, x: &mut [T]) {
        cpu.par.chunks_mut(x, TASK_ELEMS, |_, x| x.fill(value));
    }
}

instances! {
    /// `x [rows, dim] += bias [dim]` in each row.
    pub fn bias_add[T: Float](cpu: &Cpu, x: &mut [T], bias: &[T]) {
        let dim = bias.len();
        assert!(dim > 0 && x.len().is_multiple_of(dim), "bias_add: rows of {dim}");
        cpu.par.chunks_mut(x, task_rows(dim) * dim, |_, x| bias_add_task(cpu.isa, x, bias));
    }
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

instances! {
    /// The gradient of [`bias_add`] for the bias: the sum of the rows of `dy`, in the order of the norms' weights.
    pub fn bias_grad[T: Float](cpu: &Cpu, dy: &[T], d_bias: (&mut [f32], Store), scratch: &mut [f32]) {
        let (d_bias, store) = d_bias;
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
