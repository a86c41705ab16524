//! Running sums along a dim of `[outer, n, inner]`, carried in f64 one element after the other.

use bytemuck::Pod;

use super::Cpu;
use super::pieces::{TASK_ELEMS, cut, for_pieces};
use super::reduce::Dims;

/// `y[o, k, i]` = the sum of `x[o, ..=k, i]`, or of `x[o, k.., i]` if `reverse`. `carry` has an element for each column.
pub fn cumsum<T: Pod + Send + Sync>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{same_everywhere, values};

    #[test]
    fn running_sums_match_plain_loops() {
        for (outer, n, inner) in [(1, 40_001, 1), (3, 7, 5), (4000, 9, 1), (2, 300, 33), (0, 3, 1), (2, 0, 3)]
        {
            let dims = Dims { outer, n, inner };
            let x = values::<f32>(1, dims.n_elems());
            for reverse in [false, true] {
                let got = same_everywhere(|cpu| {
                    let (mut y, mut carry) = (vec![0.0; x.len()], vec![7.0; outer * inner]);
                    cumsum(cpu, dims, reverse, (f64::from, |x: f64| x as f32), &x, &mut y, &mut carry);
                    y
                });
                let mut carry = vec![0.0; outer * inner];
                for step in 0..n {
                    let k = if reverse { n - 1 - step } else { step };
                    for (j, carry) in carry.iter_mut().enumerate() {
                        let at = (j / inner * n + k) * inner + j % inner;
                        *carry += f64::from(x[at]);
                        assert_eq!(got[at], *carry as f32);
                    }
                }
            }
        }
    }
}
