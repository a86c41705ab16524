//! Softmax and its logarithm over rows, forward and backward.

use crate::dtype::Float;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::lanes;
use crate::math::exp;
use crate::pieces::task_rows;
use crate::{Cpu, Store};

instances! {
    /// `y = softmax(x)` in each row of `dim`.
    pub fn softmax_forward[T: Float](cpu: &Cpu, x: &[T], dim: usize, y: &mut [T]) {
        by_rows(cpu, "softmax_forward", [x.len()], dim, y, |from, y| softmax_task(cpu.isa, &x[from..], dim, y));
    }
}

instances! {
    /// `dx = y * (dy - sum of dy * y)`, overwritten or added to.
    pub fn softmax_backward[T: Float](cpu: &Cpu, y: &[T], dy: &[T], dim: usize, dx: (&mut [T], Store)) {
        let (dx, store) = dx;
        by_rows(cpu, "softmax_backward", [y.len(), dy.len()], dim, dx, |from, dx| {
            softmax_backward_task(cpu.isa, &y[from..], &dy[from..], dim, dx, store);
        });
    }
}

instances! {
    /// `y = log(softmax(x))` in each row of `dim`.
    pub fn log_softmax_forward[T: Float](cpu: &Cpu, x: &[T], dim: usize, y: &mut [T]) {
        by_rows(cpu, "log_softmax_forward", [x.len()], dim, y, |from, y| {
            log_softmax_task(cpu.isa, &x[from..], dim, y)
        });
    }
}

instances! {
    /// `dx = dy - e^y * sum of dy`, overwritten or added to.
    pub fn log_softmax_backward[T: Float](
        cpu: &Cpu,
        y: &[T],
        dy: &[T],
        dim: usize,
        dx: (&mut [T], Store),
    ) {
        let (dx, store) = dx;
        by_rows(cpu, "log_softmax_backward", [y.len(), dy.len()], dim, dx, |from, dx| {
            log_softmax_backward_task(cpu.isa, &y[from..], &dy[from..], dim, dx, store);
        });
    }
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
            let log_sum = libm::log(f64::from(lanes::sum_map(x, |x| exp(x - max)))) as f32;
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
