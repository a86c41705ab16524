//! Sums, products, maxima and minima over one dim of `[outer, n, inner]`.
//!
//! A sum adds inside blocks of a fixed length, and a pairwise tree joins the blocks.

use crate::dtype::Float;
use crate::error::{Error, Result};
use crate::instances::instances;
use crate::isa::multiversion;
use crate::lanes;
use crate::pieces::{TASK_ELEMS, cut, for_pieces};
use crate::sums::{NORM_BLOCK, ROW_BLOCK, sum_rows_in_place};
use crate::{Cpu, Store};

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

instances! {
    /// `out[o, i] = scale * sum over k of x[o, k, i]`, overwritten or added to.
    pub fn sum[T: Float, U: Float](
        cpu: &Cpu,
        dims: Dims,
        scale: f32,
        x: &[T],
        out: (&mut [U], Store),
        scratch: &mut [f32],
    ) {
        let (out, store) = out;
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

/// Which element of a dim is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extreme {
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

instances! {
    /// The extreme element along the dim and its place, the first of equals; NaN goes before every number.
    pub fn extreme[T: Float](
        cpu: &Cpu,
        which: Extreme,
        dims: Dims,
        x: &[T],
        values: &mut [T],
        places: &mut [i32],
    ) {
        match which {
            Extreme::Max => first(cpu, dims, x, values, places, T::to_f32, |x, best| x > best),
            Extreme::Min => first(cpu, dims, x, values, places, T::to_f32, |x, best| x < best),
        }
    }
}

/// The same for integers.
pub fn extreme_ints(
    cpu: &Cpu,
    which: Extreme,
    dims: Dims,
    x: &[i32],
    values: &mut [i32],
    places: &mut [i32],
) {
    match which {
        Extreme::Max => first(cpu, dims, x, values, places, |x| x, |x, best| x > best),
        Extreme::Min => first(cpu, dims, x, values, places, |x| x, |x, best| x < best),
    }
}

/// The element along the dim before which no other `goes`.
fn first<T: Copy + Send + Sync, V: PartialOrd + Copy>(
    cpu: &Cpu,
    dims: Dims,
    x: &[T],
    values: &mut [T],
    places: &mut [i32],
    value_of: impl Fn(T) -> V + Sync + Send,
    goes_before: impl Fn(V, V) -> bool + Sync + Send,
) {
    let Dims { outer, n, inner } = dims;
    assert!(n > 0 && x.len() == dims.n_elems(), "extreme: lengths");
    assert!([values.len(), places.len()] == [outer * inner; 2], "extreme: outputs");
    // Only NaN cannot be compared with itself.
    let is_nan = |x: V| x.partial_cmp(&x).is_none();
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
                    let (best, candidate) = (value_of(*value), value_of(*x));
                    if goes_before(candidate, best) || (is_nan(candidate) && !is_nan(best)) {
                        (*value, *place) = (*x, k as i32);
                    }
                }
            }
        }
    });
}

/// The sum of integers along the dim, added in `scratch`, one number for each of `out`.
///
/// # Errors
/// A sum outside of the range of i32.
pub fn sum_ints(cpu: &Cpu, dims: Dims, x: &[i32], out: &mut [i32], scratch: &mut [i64]) -> Result<()> {
    let Dims { n, inner, .. } = dims;
    assert!(x.len() == dims.n_elems() && scratch.len() == out.len(), "sum_ints: lengths");
    cpu.par.chunks_mut(scratch, inner, |o, sums| {
        sums.fill(0);
        for row in x[o * n * inner..(o + 1) * n * inner].chunks_exact(inner) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += i64::from(*x));
        }
    });
    for (out, sum) in out.iter_mut().zip(scratch) {
        let outside = |_| Error::Usage(format!("{sum} is outside of the range of i32; cast to f32 first"));
        *out = i32::try_from(*sum).map_err(outside)?;
    }
    Ok(())
}

instances! {
    /// `out[o, i] = product over k of x[o, k, i]`, in the order of k.
    pub fn prod[T: Float](cpu: &Cpu, dims: Dims, x: &[T], out: &mut [T]) {
        let Dims { outer, n, inner } = dims;
        assert!(x.len() == dims.n_elems() && out.len() == outer * inner, "prod: lengths");
        let group = (TASK_ELEMS / n.max(1)).max(1);
        cpu.par.chunks_mut(out, group, |task, out| {
            for (at, out) in (task * group..).zip(out) {
                let start = at / inner * n * inner + at % inner;
                let factors = (0..n).map(|k| x[start + k * inner].to_f32());
                *out = T::from_f32(factors.fold(1.0, |product, x| product * x));
            }
        });
    }
}

instances! {
    /// `dx[o, k, i] = dy[o, i] * product over all but k of x[o, ., i]`, overwritten or added to. `scratch` is as long as x.
    pub fn prod_backward[T: Float](
        cpu: &Cpu,
        dims: Dims,
        x: &[T],
        dy: &[T],
        dx: (&mut [T], Store),
        scratch: &mut [f32],
    ) {
        let (dx, store) = dx;
        let Dims { outer, n, inner } = dims;
        assert!([x.len(), dx.len(), scratch.len()] == [dims.n_elems(); 3], "prod_backward: lengths");
        let block = n * inner;
        let outputs = (cut(dx, block.max(1)), cut(scratch, block.max(1)));
        for_pieces(&cpu.par, outer, outputs, |o, (dx, before)| {
            let x = &x[o * block..(o + 1) * block];
            for i in 0..inner {
                let mut product = 1.0;
                for at in (0..n).map(|k| k * inner + i) {
                    before[at] = product;
                    product *= x[at].to_f32();
                }
                product = dy[o * inner + i].to_f32();
                for at in (0..n).rev().map(|k| k * inner + i) {
                    store.put(&mut dx[at], before[at] * product);
                    product *= x[at].to_f32();
                }
            }
        });
    }
}

instances! {
    /// `dx[o, places[o, i], i] += dy[o, i]`, of [`extreme`].
    pub fn extreme_backward[T: Float](dims: Dims, places: &[i32], dy: &[T], dx: &mut [T]) {
        let Dims { n, inner, .. } = dims;
        for (at, (&place, dy)) in places.iter().zip(dy).enumerate() {
            let to = (at / inner * n + place as usize) * inner + at % inner;
            Store::Add.put(&mut dx[to], dy.to_f32());
        }
    }
}
