//! Softmax and its logarithm over rows, forward and backward.

use super::isa::multiversion;
use super::lanes;
use super::math::exp;
use super::pieces::task_rows;
use super::{Cpu, Store};
use crate::dtype::Float;

/// `y = softmax(x)` in each row of `dim`.
pub fn softmax_forward<T: Float>(cpu: &Cpu, x: &[T], dim: usize, y: &mut [T]) {
    by_rows(cpu, "softmax_forward", [x.len()], dim, y, |from, y| softmax_task(cpu.isa, &x[from..], dim, y));
}

/// `dx = y * (dy - sum of dy * y)`, overwritten or added to.
pub fn softmax_backward<T: Float>(cpu: &Cpu, y: &[T], dy: &[T], dim: usize, (dx, store): (&mut [T], Store)) {
    by_rows(cpu, "softmax_backward", [y.len(), dy.len()], dim, dx, |from, dx| {
        softmax_backward_task(cpu.isa, &y[from..], &dy[from..], dim, dx, store);
    });
}

/// `y = log(softmax(x))` in each row of `dim`.
pub fn log_softmax_forward<T: Float>(cpu: &Cpu, x: &[T], dim: usize, y: &mut [T]) {
    by_rows(cpu, "log_softmax_forward", [x.len()], dim, y, |from, y| {
        log_softmax_task(cpu.isa, &x[from..], dim, y)
    });
}

/// `dx = dy - e^y * sum of dy`, overwritten or added to.
pub fn log_softmax_backward<T: Float>(
    cpu: &Cpu,
    y: &[T],
    dy: &[T],
    dim: usize,
    (dx, store): (&mut [T], Store),
) {
    by_rows(cpu, "log_softmax_backward", [y.len(), dy.len()], dim, dx, |from, dx| {
        log_softmax_backward_task(cpu.isa, &y[from..], &dy[from..], dim, dx, store);
    });
}

/// Runs `task(first element, rows of out)` over all rows.
fn by_rows<T: Float, const N: usize>(
    cpu: &Cpu,
    op: &str,
    inputs: [usize; N],
    dim: usize,
    out: &mut [T],
    task: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    assert!(inputs == [out.len(); N] && dim > 0 && out.len().is_multiple_of(dim), "{op}: rows of {dim}");
    let task_elems = task_rows(dim) * dim;
    cpu.par.chunks_mut(out, task_elems, |i, out| task(i * task_elems, out));
}

multiversion! {
    fn softmax_task[T: Float](x: &[T], dim: usize, y: &mut [T]) {
        for (x, y) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)) {
            let max = lanes::max(x);
            let factor = 1.0 / lanes::sum_map(x, |x| exp(x - max));
            for (y, x) in y.iter_mut().zip(x) {
                *y = T::from_f32(exp(x.to_f32() - max) * factor);
            }
        }
    }
}

multiversion! {
    fn softmax_backward_task[T: Float](y: &[T], dy: &[T], dim: usize, dx: &mut [T], store: Store) {
        for ((y, dy), dx) in y.chunks_exact(dim).zip(dy.chunks_exact(dim)).zip(dx.chunks_exact_mut(dim)) {
            let mean = lanes::sum_map2(y, dy, |y, dy| y * dy);
            for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                store.put(dx, y.to_f32() * (dy.to_f32() - mean));
            }
        }
    }
}

multiversion! {
    fn log_softmax_task[T: Float](x: &[T], dim: usize, y: &mut [T]) {
        for (x, y) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)) {
            let max = lanes::max(x);
            let log_sum = f64::from(lanes::sum_map(x, |x| exp(x - max))).ln() as f32;
            for (y, x) in y.iter_mut().zip(x) {
                *y = T::from_f32(x.to_f32() - max - log_sum);
            }
        }
    }
}

multiversion! {
    fn log_softmax_backward_task[T: Float](y: &[T], dy: &[T], dim: usize, dx: &mut [T], store: Store) {
        for ((y, dy), dx) in y.chunks_exact(dim).zip(dy.chunks_exact(dim)).zip(dx.chunks_exact_mut(dim)) {
            let sum = lanes::sum_map(dy, |dy| dy);
            for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                store.put(dx, dy.to_f32() - exp(y.to_f32()) * sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, f64s, same_everywhere, values};
    use crate::dtype::bf16;

    fn check<T: Float>(rows: usize, dim: usize, tolerance: f64) {
        let (x, dy) = (values::<T>(1, rows * dim), values::<T>(2, rows * dim));
        let outs = same_everywhere(|cpu| {
            let mut outs: [Vec<T>; 5] = std::array::from_fn(|_| x.clone());
            let [y, dx, log_y, log_dx, added] = &mut outs;
            softmax_forward(cpu, &x, dim, y);
            softmax_backward(cpu, y, &dy, dim, (dx, Store::Overwrite));
            log_softmax_forward(cpu, &x, dim, log_y);
            log_softmax_backward(cpu, log_y, &dy, dim, (log_dx, Store::Overwrite));
            softmax_backward(cpu, y, &dy, dim, (added, Store::Add));
            outs
        });
        let (x, dy) = (f64s(&x), f64s(&dy));
        let mut want: [Vec<f64>; 5] = Default::default();
        for (x, dy) in x.chunks(dim).zip(dy.chunks(dim)) {
            let sum: f64 = x.iter().map(|x| x.exp()).sum();
            let mean: f64 = x.iter().zip(dy).map(|(x, dy)| x.exp() / sum * dy).sum();
            for (x, dy_j) in x.iter().zip(dy) {
                let p = x.exp() / sum;
                let dx = p * (dy_j - mean);
                let log_dx = dy_j - p * dy.iter().sum::<f64>();
                for (want, value) in want.iter_mut().zip([p, dx, p.ln(), log_dx, x + dx]) {
                    want.push(value);
                }
            }
        }
        for (out, want) in outs.iter().zip(want) {
            assert_close(out, &want, tolerance);
        }
    }

    #[test]
    fn softmax_and_its_logarithm_match_the_reference() {
        for (rows, dim) in [(1, 1), (3, 7), (65, 64), (5, 1001)] {
            check::<f32>(rows, dim, 1e-5);
            check::<bf16>(rows, dim, 0.03);
        }
    }
}
