//! Sums and maxima over one dim of `[outer, n, inner]`.
//!
//! A sum adds inside blocks of a fixed length, and a pairwise tree joins the blocks.

use super::isa::multiversion;
use super::lanes;
use super::pieces::{TASK_ELEMS, cut, for_pieces};
use super::sums::{NORM_BLOCK, ROW_BLOCK, sum_rows_in_place};
use super::{Cpu, Store};
use crate::dtype::Float;

/// A tensor seen from one of its dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// The product of the dims before it.
    pub outer: usize,
    /// Its size.
    pub n: usize,
    /// The product of the dims after it.
    pub inner: usize,
}

impl Dims {
    /// Elements of the tensor.
    pub fn n_elems(self) -> usize {
        self.outer * self.n * self.inner
    }

    /// Rows (or elements, where `inner` is 1) that are added one after the other.
    fn block(self) -> usize {
        if self.inner == 1 { NORM_BLOCK } else { ROW_BLOCK }
    }
}

/// The f32 elements of scratch that [`sum`] needs.
pub fn sum_scratch(dims: Dims) -> usize {
    dims.outer * dims.n.div_ceil(dims.block()) * dims.inner
}

/// `out[o, i] = scale * sum over k of x[o, k, i]`, overwritten or added to.
pub fn sum<T: Float, U: Float>(
    cpu: &Cpu,
    dims: Dims,
    scale: f32,
    x: &[T],
    (out, store): (&mut [U], Store),
    scratch: &mut [f32],
) {
    let Dims { outer, n, inner } = dims;
    assert!(x.len() == dims.n_elems() && out.len() == outer * inner, "sum: lengths");
    if out.is_empty() {
        return;
    }
    let (block, n_blocks) = (dims.block(), n.div_ceil(dims.block()));
    let partials = &mut scratch[..sum_scratch(dims)];
    let group = (TASK_ELEMS / (block.min(n) * inner).max(1)).max(1);
    for_pieces(&cpu.par, (outer * n_blocks).div_ceil(group), cut(partials, group * inner), |i, partials| {
        for (j, partial) in partials.chunks_exact_mut(inner).enumerate() {
            let (o, b) = ((i * group + j) / n_blocks, (i * group + j) % n_blocks);
            let from = (o * n + b * block) * inner;
            let to = (o * n + n.min((b + 1) * block)) * inner;
            block_task(cpu.isa, &x[from..to], partial);
        }
    });
    for (o, out) in out.chunks_exact_mut(inner).enumerate() {
        let partials = &mut partials[o * n_blocks * inner..(o + 1) * n_blocks * inner];
        if n_blocks > 1 {
            sum_rows_in_place(cpu, partials, inner);
        }
        for (i, out) in out.iter_mut().enumerate() {
            store.put(out, scale * partials.get(i).copied().unwrap_or(0.0));
        }
    }
}

multiversion! {
    fn block_task[T: Float](x: &[T], sum: &mut [f32]) {
        if let [sum] = sum {
            *sum = lanes::sum_map(x, |x| x);
            return;
        }
        sum.fill(0.0);
        for row in x.chunks_exact(sum.len()) {
            for (sum, x) in sum.iter_mut().zip(row) {
                *sum += x.to_f32();
            }
        }
    }
}

/// The largest element along the dim and its place, the first of equals; NaN counts as the largest.
pub fn max<T: Float>(cpu: &Cpu, dims: Dims, x: &[T], values: &mut [T], places: &mut [i32]) {
    let Dims { outer, n, inner } = dims;
    assert!(n > 0 && x.len() == dims.n_elems(), "max: lengths");
    assert!([values.len(), places.len()] == [outer * inner; 2], "max: outputs");
    let group = (TASK_ELEMS / (n * inner).max(1)).max(1);
    let outputs = (cut(values, group * inner), cut(places, group * inner));
    for_pieces(&cpu.par, outer.div_ceil(group), outputs, |i, (values, places)| {
        let blocks = x[i * group * n * inner..].chunks_exact((n * inner).max(1));
        let outputs = values.chunks_exact_mut(inner.max(1)).zip(places.chunks_exact_mut(inner.max(1)));
        for (x, (values, places)) in blocks.zip(outputs) {
            values.copy_from_slice(&x[..inner]);
            places.fill(0);
            for (k, row) in x.chunks_exact(inner).enumerate().skip(1) {
                for ((value, place), x) in values.iter_mut().zip(places.iter_mut()).zip(row) {
                    let (best, x32) = (value.to_f32(), x.to_f32());
                    if x32 > best || (x32.is_nan() && !best.is_nan()) {
                        (*value, *place) = (*x, k as i32);
                    }
                }
            }
        }
    });
}

/// `dx[o, places[o, i], i] += dy[o, i]`.
pub fn max_backward<T: Float>(dims: Dims, places: &[i32], dy: &[T], dx: &mut [T]) {
    let Dims { n, inner, .. } = dims;
    for (at, (&place, dy)) in places.iter().zip(dy).enumerate() {
        let to = (at / inner * n + place as usize) * inner + at % inner;
        Store::Add.put(&mut dx[to], dy.to_f32());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, f64s, same_everywhere, values};
    use crate::dtype::bf16;

    #[test]
    fn sums_and_maxima_match_plain_loops() {
        for (outer, n, inner) in [(1, 20_001, 1), (3, 7, 5), (2, 99, 33), (301, 5, 1), (1, 1000, 77), (2, 0, 3)] {
            let dims = Dims { outer, n, inner };
            let x = values::<bf16>(1, dims.n_elems());
            let start = values::<f32>(2, outer * inner);
            let (written, added) = same_everywhere(|cpu| {
                let (mut written, mut added) = (start.clone(), start.clone());
                let mut scratch = vec![f32::NAN; sum_scratch(dims)];
                sum(cpu, dims, 0.5, &x, (&mut written, Store::Overwrite), &mut scratch);
                sum(cpu, dims, 0.5, &x, (&mut added, Store::Add), &mut scratch);
                (written, added)
            });
            let x64 = f64s(&x);
            let at = |j: usize, k: usize| (j / inner * n + k) * inner + j % inner;
            let want: Vec<f64> =
                (0..outer * inner).map(|j| 0.5 * (0..n).map(|k| x64[at(j, k)]).sum::<f64>()).collect();
            assert_close(&written, &want, 2e-5);
            assert_close(&added, &want.iter().zip(f64s(&start)).map(|(w, s)| w + s).collect::<Vec<_>>(), 2e-5);
            if n == 0 {
                continue;
            }
            let (largest, places) = same_everywhere(|cpu| {
                let (mut largest, mut places) = (vec![bf16::ZERO; outer * inner], vec![9; outer * inner]);
                max(cpu, dims, &x, &mut largest, &mut places);
                (largest, places)
            });
            for j in 0..outer * inner {
                let row: Vec<f64> = (0..n).map(|k| x64[at(j, k)]).collect();
                let best = row.iter().copied().fold(f64::MIN, f64::max);
                assert_eq!(f64::from(largest[j].to_f32()), best);
                assert_eq!(places[j] as usize, row.iter().position(|&x| x == best).unwrap());
            }
        }
    }

    #[test]
    fn nan_is_the_largest() {
        let (mut value, mut place) = ([0.0f32], [0]);
        let dims = Dims { outer: 1, n: 4, inner: 1 };
        let cpu = &crate::cpu::testing::cpus()[0];
        max(cpu, dims, &[1.0, f32::NAN, f32::INFINITY, f32::NAN], &mut value, &mut place);
        assert!(value[0].is_nan() && place == [1]);
    }
}
