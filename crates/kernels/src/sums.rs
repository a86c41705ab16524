//! Sums with a written order: squared norms over blocks, pairwise trees of numbers and of rows.

use crate::dtype::Float;
use crate::elementwise::add_task;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::{Cpu, Store};

/// The elements of a block of [`squared_norm`].
pub const NORM_BLOCK: usize = 4096;

/// A sum over rows adds this many one after the other; a pairwise tree joins the blocks.
pub const ROW_BLOCK: usize = 32;

/// Where a tree over `n > 1` leaves divides them: at the largest power of two below `n`.
fn split_point(n: usize) -> usize {
    1 << (n - 1).ilog2()
}

instances! {
    /// The sum of squares of each block of [`NORM_BLOCK`] elements (the last may be shorter), one f64 per block.
    /// Neither overflow nor underflow is possible: a block that is not finite held an element that is not.
    pub fn squared_norm[T: Float](cpu: &Cpu, x: &[T], blocks: &mut [f64]) {
        assert_eq!(blocks.len(), x.len().div_ceil(NORM_BLOCK), "squared_norm: one f64 per block");
        let task = 8;
        cpu.par.chunks_mut(blocks, task, |i, blocks| {
            let x = &x[i * task * NORM_BLOCK..];
            squared_norm_task(cpu.isa, x, blocks);
        });
    }
}

multiversion! {
    fn squared_norm_task[T: Float](x: &[T], blocks: &mut [f64]) {
        for (x, out) in x.chunks(NORM_BLOCK).zip(blocks) {
            *out = squares(x);
        }
    }
}

/// The sum of squares of one block, in 32 lanes of f64 joined by a halving tree.
#[inline(always)]
pub(crate) fn squares<T: Float>(x: &[T]) -> f64 {
    const LANES: usize = 32;
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
    acc[0]
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
                add_task(cpu.isa, &right[..dim], &mut left[..dim]);
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
