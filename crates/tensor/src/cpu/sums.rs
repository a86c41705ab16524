//! Sums with a written order: squared norms over blocks, pairwise trees of numbers, of rows and of ranks.

use super::isa::{Isa, multiversion};
use super::pieces::TASK_ELEMS;
use super::{Cpu, Store};
use crate::dtype::Float;

/// The elements of a block of [`squared_norm`].
pub const NORM_BLOCK: usize = 4096;

/// A sum over rows adds this many one after the other; a pairwise tree joins the blocks.
pub const ROW_BLOCK: usize = 32;

/// The elements of each rank that [`sum_into`] adds at a time, small enough for the stack.
const STRIP: usize = 1024;

/// The most ranks whose sum is formed in registers; a power of two.
const MAX_LEAF: usize = 8;

/// One vector of AVX-512 for each of them.
const RANK_LANES: usize = 16;

/// Where a tree over `n > 1` leaves divides them: at the largest power of two below `n`.
fn split_point(n: usize) -> usize {
    1 << (n - 1).ilog2()
}

/// The sum of squares of each block of [`NORM_BLOCK`] elements (the last may be shorter), one f64 per block.
/// Neither overflow nor underflow is possible: a block that is not finite held an element that is not.
pub fn squared_norm<T: Float>(cpu: &Cpu, x: &[T], blocks: &mut [f64]) {
    assert_eq!(blocks.len(), x.len().div_ceil(NORM_BLOCK), "squared_norm: one f64 per block");
    let task = 8;
    cpu.par.chunks_mut(blocks, task, |i, blocks| {
        let x = &x[i * task * NORM_BLOCK..];
        squared_norm_task(cpu.isa, x, blocks);
    });
}

multiversion! {
    fn squared_norm_task[T: Float](x: &[T], blocks: &mut [f64]) {
        const LANES: usize = 32;
        for (x, out) in x.chunks(NORM_BLOCK).zip(blocks) {
            let mut acc = [0f64; LANES];
            let (body, tail) = x.as_chunks::<LANES>();
            for x in body {
                for j in 0..LANES {
                    let x = f64::from(x[j].to_f32());
                    acc[j] += x * x;
                }
            }
            for (acc, x) in acc.iter_mut().zip(tail) {
                let x = f64::from(x.to_f32());
                *acc += x * x;
            }
            let mut width = LANES / 2;
            while width > 0 {
                for j in 0..width {
                    acc[j] += acc[j + width];
                }
                width /= 2;
            }
            *out = acc[0];
        }
    }
}

/// The pairwise sum of `values`; the tree depends on their number only.
pub fn tree_sum(values: &[f64]) -> f64 {
    match values {
        [] => 0.0,
        [x] => *x,
        _ => {
            let (left, right) = values.split_at(split_point(values.len()));
            tree_sum(left) + tree_sum(right)
        }
    }
}

/// The pairwise sum of f32 `values`, added as f64; the tree is that of [`tree_sum`].
pub fn tree_sum_f32(values: &[f32]) -> f64 {
    match values {
        [] => 0.0,
        [x] => f64::from(*x),
        _ => {
            let (left, right) = values.split_at(split_point(values.len()));
            tree_sum_f32(left) + tree_sum_f32(right)
        }
    }
}

/// Adds the rows of `partials` in a pairwise tree; the first row becomes their sum, the others are scratch.
pub fn sum_rows_in_place(cpu: &Cpu, partials: &mut [f32], dim: usize) {
    assert!(dim > 0 && partials.len().is_multiple_of(dim), "sum_rows_in_place: rows of {dim}");
    let mut step = dim;
    while step < partials.len() {
        cpu.par.chunks_mut(partials, 2 * step, |_, pair| {
            let (left, right) = pair.split_at_mut(step.min(pair.len()));
            if !right.is_empty() {
                add_assign(cpu.isa, &mut left[..dim], &right[..dim]);
            }
        });
        step *= 2;
    }
}

/// The elements of one partial row per block of [`ROW_BLOCK`] rows.
pub(crate) fn partial_rows(rows: usize, dim: usize) -> usize {
    rows.div_ceil(ROW_BLOCK) * dim
}

/// Adds the rows of `partials`, which become scratch, and stores the sum.
pub(crate) fn store_sum_of_rows(cpu: &Cpu, partials: &mut [f32], out: &mut [f32], store: Store) {
    if partials.is_empty() {
        if store == Store::Overwrite {
            out.fill(0.0);
        }
        return;
    }
    sum_rows_in_place(cpu, partials, out.len());
    for (out, sum) in out.iter_mut().zip(partials) {
        store.put(out, *sum);
    }
}

/// `dst = sum of sources` in one pass, in the tree `(0 + 1) + (2 + 3)` …, whatever the number of threads: the
/// arithmetic of an all-reduce, where sources are ranks.
pub fn sum_into(cpu: &Cpu, dst: &mut [f32], sources: &[&[f32]]) {
    assert!(!sources.is_empty() && sources.iter().all(|s| s.len() == dst.len()), "sum_into: lengths");
    cpu.par.chunks_mut(dst, TASK_ELEMS, |i, dst| {
        for (j, dst) in dst.chunks_mut(STRIP).enumerate() {
            let from = i * TASK_ELEMS + j * STRIP;
            rank_tree(cpu.isa, dst, 0, sources.len(), &|k| Some(&sources[k][from..]));
        }
    });
}

/// [`sum_into`] where `dst` itself holds the source of index `place`, and `others` are the rest in order.
pub fn sum_in_place(cpu: &Cpu, dst: &mut [f32], place: usize, others: &[&[f32]]) {
    assert!(place <= others.len() && others.iter().all(|s| s.len() == dst.len()), "sum_in_place: lengths");
    let n = others.len() + 1;
    cpu.par.chunks_mut(dst, TASK_ELEMS, |i, dst| {
        for (j, dst) in dst.chunks_mut(STRIP).enumerate() {
            let from = i * TASK_ELEMS + j * STRIP;
            let other = |k: usize| &others[if k < place { k } else { k - 1 }][from..];
            if n <= MAX_LEAF {
                rank_tree(cpu.isa, dst, 0, n, &|k| (k != place).then(|| other(k)));
            } else {
                let mut own = [0.0; STRIP];
                own[..dst.len()].copy_from_slice(dst);
                rank_tree(cpu.isa, dst, 0, n, &|k| Some(if k == place { &own[..] } else { other(k) }));
            }
        }
    });
}

/// `out = sum of source(first), …, source(first + n - 1)`, where `None` is what `out` holds, allowed in a tree of
/// one leaf only.
fn rank_tree<'a>(
    isa: Isa,
    out: &mut [f32],
    first: usize,
    n: usize,
    source: &dyn Fn(usize) -> Option<&'a [f32]>,
) {
    if n <= MAX_LEAF {
        let mut sources = [None; MAX_LEAF];
        for (k, slot) in sources[..n].iter_mut().enumerate() {
            *slot = source(first + k);
        }
        return leaf(isa, out, &sources[..n]);
    }
    let left = split_point(n);
    rank_tree(isa, out, first, left, source);
    let mut right = [0.0; STRIP];
    let right = &mut right[..out.len()];
    rank_tree(isa, right, first + left, n - left, source);
    add_assign(isa, out, right);
}

multiversion! {
    fn leaf(out: &mut [f32], sources: &[Option<&[f32]>]) {
        match sources.len() {
            1 => sum_ranks::<1>(out, sources),
            2 => sum_ranks::<2>(out, sources),
            3 => sum_ranks::<3>(out, sources),
            4 => sum_ranks::<4>(out, sources),
            5 => sum_ranks::<5>(out, sources),
            6 => sum_ranks::<6>(out, sources),
            7 => sum_ranks::<7>(out, sources),
            _ => sum_ranks::<MAX_LEAF>(out, sources),
        }
    }
}

#[inline(always)]
fn sum_ranks<const N: usize>(out: &mut [f32], sources: &[Option<&[f32]>]) {
    let whole = out.len() / RANK_LANES * RANK_LANES;
    for from in (0..whole).step_by(RANK_LANES) {
        sum_ranks_at::<N, RANK_LANES>(out, sources, from);
    }
    for from in whole..out.len() {
        sum_ranks_at::<N, 1>(out, sources, from);
    }
}

/// `W` elements of `N` ranks: neighbours are added until one is left, an odd one waits for the next round.
#[inline(always)]
fn sum_ranks_at<const N: usize, const W: usize>(out: &mut [f32], sources: &[Option<&[f32]>], from: usize) {
    let mut terms = [[0.0; W]; N];
    for k in 0..N {
        terms[k].copy_from_slice(&sources[k].unwrap_or(out)[from..from + W]);
    }
    let mut n = N;
    while n > 1 {
        for k in 0..n / 2 {
            let (left, right) = (terms[2 * k], terms[2 * k + 1]);
            for (sum, (left, right)) in terms[k].iter_mut().zip(left.iter().zip(right)) {
                *sum = left + right;
            }
        }
        if n % 2 == 1 {
            terms[n / 2] = terms[n - 1];
        }
        n = n.div_ceil(2);
    }
    out[from..from + W].copy_from_slice(&terms[0]);
}

multiversion! {
    fn add_assign(y: &mut [f32], x: &[f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{same_everywhere, values};
    use crate::dtype::bf16;

    #[test]
    fn squared_norms_are_exact_enough_and_see_everything() {
        for n in [0, 1, 31, 4095, 4096, 4097, 40_000] {
            let x = values::<bf16>(1, n);
            let blocks = same_everywhere(|cpu| {
                let mut blocks = vec![0.0; n.div_ceil(NORM_BLOCK)];
                squared_norm(cpu, &x, &mut blocks);
                blocks
            });
            let want: f64 = x.iter().map(|x| f64::from(x.to_f32()).powi(2)).sum();
            assert!((tree_sum(&blocks) - want).abs() <= 1e-12 * want);
        }
        let mut x = values::<f32>(2, 10_000);
        (x[0], x[5000], x[9999]) = (3e38, f32::NAN, f32::INFINITY);
        let blocks = same_everywhere(|cpu| {
            let mut blocks = vec![0.0; 3];
            squared_norm(cpu, &x, &mut blocks);
            blocks.iter().map(|b| b.to_bits()).collect::<Vec<_>>()
        });
        let blocks: Vec<f64> = blocks.into_iter().map(f64::from_bits).collect();
        assert!(blocks[0].is_finite() && blocks[1].is_nan() && blocks[2] == f64::INFINITY);
    }

    #[test]
    fn trees_have_the_written_order() {
        let x: Vec<f64> = values::<f32>(3, 7).into_iter().map(|x| f64::from(x) / 3.0).collect();
        assert_eq!(tree_sum(&x), ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + x[6]));
        assert_eq!((tree_sum(&[]), tree_sum_f32(&[])), (0.0, 0.0));
        let rows = values::<f32>(4, 5 * 33);
        let sum = same_everywhere(|cpu| {
            let mut partials = rows.clone();
            sum_rows_in_place(cpu, &mut partials, 33);
            partials[..33].to_vec()
        });
        for j in 0..33 {
            let at = |row: usize| rows[row * 33 + j];
            assert_eq!(sum[j], ((at(0) + at(1)) + (at(2) + at(3))) + at(4));
        }
    }

    #[test]
    fn ranks_are_added_in_their_tree_also_in_place() {
        let n = 2 * TASK_ELEMS + 1030;
        let ranks: Vec<Vec<f32>> = (0..11).map(|k| values(10 + k, n)).collect();
        for n_ranks in [1, 2, 3, 4, 5, 6, 7, 8, 11] {
            let sources: Vec<&[f32]> = ranks[..n_ranks].iter().map(|r| &r[..]).collect();
            let sum = same_everywhere(|cpu| {
                let mut dst = vec![7.0; n];
                sum_into(cpu, &mut dst, &sources);
                dst
            });
            for j in [0, 1, 1023, 1024, TASK_ELEMS, n - 1] {
                let r = |k: usize| if k < n_ranks { ranks[k][j] } else { 0.0 };
                let eight = ((r(0) + r(1)) + (r(2) + r(3))) + ((r(4) + r(5)) + (r(6) + r(7)));
                let want = eight + ((r(8) + r(9)) + r(10));
                assert_eq!(sum[j], want, "{n_ranks} ranks, element {j}");
            }
            for place in 0..n_ranks {
                let mut others = sources.clone();
                let mut dst = others.remove(place).to_vec();
                sum_in_place(&crate::cpu::testing::cpus()[0], &mut dst, place, &others);
                assert_eq!(dst, sum);
            }
        }
    }
}
