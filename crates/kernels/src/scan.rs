//! Running sums along a dim of `[outer, n, inner]`, carried in f64 one element after the other.

use crate::Cpu;
use crate::dtype::Float;
use crate::instances::instances;
use crate::pieces::{TASK_ELEMS, cut, for_pieces};
use crate::reduce::Dims;

instances! {
    /// `y[o, k, i]` = the sum of `x[o, ..=k, i]`, or of `x[o, k.., i]` if `reverse`. `carry` has an element for each
    /// column.
    pub fn cumsum[T: Float](cpu: &Cpu, dims: Dims, reverse: bool, x: &[T], y: &mut [T], carry: &mut [f64]) {
        let convert = (|x: T| f64::from(x.to_f32()), |sum: f64| T::from_f32(sum as f32));
        scan(cpu, dims, reverse, convert, x, y, carry);
    }
}

/// The same for integers; a sum outside of their range becomes the nearest of them.
pub fn cumsum_ints(cpu: &Cpu, dims: Dims, reverse: bool, x: &[i32], y: &mut [i32], carry: &mut [f64]) {
    scan(cpu, dims, reverse, (f64::from, |sum: f64| sum as i32), x, y, carry);
}

fn scan<T: Copy + Send + Sync>(
    cpu: &Cpu,
    dims: Dims,
    reverse: bool,
    (widen, round): (impl Fn(T) -> f64 + Sync + Send, impl Fn(f64) -> T + Sync + Send),
    x: &[T],
    y: &mut [T],
    carry: &mut [f64],
) {
    let Dims { outer, n, inner } = dims;
    assert!(
        x.len() == dims.n_elems() && y.len() == x.len() && carry.len() >= outer * inner,
        "cumsum: lengths"
    );
    if y.is_empty() {
        return;
    }
    let group = (TASK_ELEMS / (n * inner)).max(1);
    let outputs = (cut(y, group * n * inner), cut(carry, group * inner));
    for_pieces(&cpu.par, outer.div_ceil(group), outputs, |i, (y, carry)| {
        let blocks = x[i * group * n * inner..].chunks_exact(n * inner);
        let outputs = y.chunks_exact_mut(n * inner).zip(carry.chunks_exact_mut(inner));
        for (x, (y, carry)) in blocks.zip(outputs) {
            carry.fill(0.0);
            for k in 0..n {
                let row = if reverse { n - 1 - k } else { k } * inner;
                let elements = y[row..row + inner].iter_mut().zip(&x[row..row + inner]);
                for ((y, x), carry) in elements.zip(carry.iter_mut()) {
                    *carry += widen(*x);
                    *y = round(*carry);
                }
            }
        }
    });
}
