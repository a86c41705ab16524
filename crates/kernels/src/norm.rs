//! RMSNorm and LayerNorm over rows, forward and backward.
//!
//! The rows and the weight of an RMSNorm may be f32 where its output is 16-bit: residual streams are sums of many parts,
//! and weights are near one, where 16 bits are coarse. The output is rounded once.
//! Weight gradients are sums over rows: sequential inside blocks of [`ROW_BLOCK`] rows, a pairwise tree over blocks.

use crate::dtype::Float;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::lanes::{sum_map, sum_map2, sum_map3};
use crate::pieces::{cut, for_pieces, task_rows};
use crate::sums::{ROW_BLOCK, partial_rows, store_sum_of_rows};
use crate::{Cpu, Store};

/// The row length, from a weight of one element per column.
fn row_length<T>(op: &str, weight: &[T], rows_by_dim: &[usize], rows: &[usize]) -> usize {
    let dim = weight.len();
    assert!(dim > 0, "{op}: empty weight");
    assert!(
        rows_by_dim.iter().all(|&n| n == rows_by_dim[0]) && rows_by_dim[0].is_multiple_of(dim),
        "{op}: rows"
    );
    assert!(rows.iter().all(|&n| n * dim == rows_by_dim[0]), "{op}: one statistic per row");
    dim
}

#[inline(always)]
fn rms_rstd<T: Float>(x: &[T], eps: f32) -> f32 {
    1.0 / (sum_map(x, |x| x * x) / x.len() as f32 + eps).sqrt()
}

/// What an RMSNorm multiplies by: `offset + weight`.
#[derive(Clone, Copy, Debug)]
pub struct RmsWeight<'a, W> {
    /// One element per column.
    pub weight: &'a [W],
    /// Usually 0; 1 in Gemma, whose weights begin at 0.
    pub offset: f32,
}

/// Runs a body with `$plus` standing for the function that adds the offset of `$weight` to an element. A norm without
/// an offset gets a loop of its own: it costs no addition, and -0 stays -0.
macro_rules! with_offset {
    ($weight:expr, $plus:ident => $body:expr) => {
        if $weight.offset == 0.0 {
            let $plus = |w: f32| w;
            $body
        } else {
            let $plus = |w: f32| $weight.offset + w;
            $body
        }
    };
}

#[inline(always)]
fn rms_row<X: Float, W: Float, Y: Float>(x: &[X], weight: RmsWeight<'_, W>, rstd: f32, y: &mut [Y]) {
    with_offset!(weight, plus => {
        for ((y, x), w) in y.iter_mut().zip(x).zip(weight.weight) {
            *y = Y::from_f32(x.to_f32() * rstd * plus(w.to_f32()));
        }
    });
}

instances! {
    /// `y = x * rstd * (offset + weight)`, rounded once to y's type. `rstd = 1 / sqrt(mean(x^2) + eps)` is kept for the
    /// backward pass.
    pub fn rms_norm_forward[X: Float, W: Float, Y: Float](
        cpu: &Cpu,
        x: &[X],
        weight: RmsWeight<'_, W>,
        eps: f32,
        y: &mut [Y],
        rstd: &mut [f32],
    ) {
        let dim = row_length("rms_norm_forward", weight.weight, &[x.len(), y.len()], &[rstd.len()]);
        let task = task_rows(dim);
        for_pieces(&cpu.par, rstd.len().div_ceil(task), (cut(y, task * dim), cut(rstd, task)), |i, (y, rstd)| {
            rms_forward_task(cpu.isa, &x[i * task * dim..], weight, eps, y, rstd);
        });
    }
}

multiversion! {
    fn rms_forward_task[X: Float, W: Float, Y: Float](
        x: &[X], weight: RmsWeight<'_, W>, eps: f32, y: &mut [Y], rstd: &mut [f32],
    ) {
        let dim = weight.weight.len();
        for ((x, y), rstd) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)).zip(rstd) {
            *rstd = rms_rstd(x, eps);
            rms_row(x, weight, *rstd, y);
        }
    }
}

instances! {
    /// [`rms_norm_forward`] with `rstd` known: the output again, bitwise identical.
    pub fn rms_norm_apply[X: Float, W: Float, Y: Float](
        cpu: &Cpu,
        x: &[X],
        weight: RmsWeight<'_, W>,
        rstd: &[f32],
        y: &mut [Y],
    ) {
        let dim = row_length("rms_norm_apply", weight.weight, &[x.len(), y.len()], &[rstd.len()]);
        let task = task_rows(dim);
        cpu.par.chunks_mut(y, task * dim, |i, y| {
            rms_apply_task(cpu.isa, &x[i * task * dim..], weight, &rstd[i * task..], y);
        });
    }
}

multiversion! {
    fn rms_apply_task[X: Float, W: Float, Y: Float](
        x: &[X], weight: RmsWeight<'_, W>, rstd: &[f32], y: &mut [Y],
    ) {
        let dim = weight.weight.len();
        for ((x, y), rstd) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)).zip(rstd) {
            rms_row(x, weight, *rstd, y);
        }
    }
}

/// The f32 elements of scratch that [`rms_norm_backward`] needs.
pub fn rms_norm_backward_scratch(rows: usize, dim: usize) -> usize {
    partial_rows(rows, dim)
}

instances! {
    /// Gradients of [`rms_norm_forward`]: `dx` and `d_weight`, each overwritten or added to.
    pub fn rms_norm_backward[X: Float, W: Float, Y: Float](
        cpu: &Cpu,
        x: &[X],
        weight: RmsWeight<'_, W>,
        rstd: &[f32],
        dy: &[Y],
        dx: (&mut [X], Store),
        d_weight: (&mut [f32], Store),
        scratch: &mut [f32],
    ) {
        let (dx, dx_store) = dx;
        let (d_weight, d_weight_store) = d_weight;
        let dim = row_length("rms_norm_backward", weight.weight, &[x.len(), dy.len(), dx.len()], &[rstd.len()]);
        assert_eq!(d_weight.len(), dim, "rms_norm_backward: d_weight");
        let partials = &mut scratch[..rms_norm_backward_scratch(rstd.len(), dim)];
        let n_blocks = rstd.len().div_ceil(ROW_BLOCK);
        for_pieces(&cpu.par, n_blocks, (cut(dx, ROW_BLOCK * dim), cut(partials, dim)), |i, (dx, partial)| {
            let from = i * ROW_BLOCK * dim;
            rms_backward_block(
                cpu.isa,
                &x[from..],
                weight,
                &rstd[i * ROW_BLOCK..],
                &dy[from..],
                dx,
                dx_store,
                partial,
            );
        });
        store_sum_of_rows(cpu, partials, d_weight, d_weight_store);
    }
}

multiversion! {
    fn rms_backward_block[X: Float, W: Float, Y: Float](
        x: &[X], weight: RmsWeight<'_, W>, rstd: &[f32], dy: &[Y], dx: &mut [X], store: Store,
        d_weight: &mut [f32],
    ) {
        d_weight.fill(0.0);
        with_offset!(weight, plus => {
            let weight = weight.weight;
            match store {
                Store::Overwrite => {
                    rms_backward_rows::<X, W, Y, false>(x, weight, plus, rstd, dy, dx, d_weight);
                }
                Store::Add => rms_backward_rows::<X, W, Y, true>(x, weight, plus, rstd, dy, dx, d_weight),
            }
        });
    }
}

#[inline(always)]
fn rms_backward_rows<X: Float, W: Float, Y: Float, const ADD: bool>(
    x: &[X],
    weight: &[W],
    plus: impl Fn(f32) -> f32,
    rstd: &[f32],
    dy: &[Y],
    dx: &mut [X],
    d_weight: &mut [f32],
) {
    let (dim, store) = (weight.len(), if ADD { Store::Add } else { Store::Overwrite });
    let rows = x.chunks_exact(dim).zip(dy.chunks_exact(dim)).zip(dx.chunks_exact_mut(dim)).zip(rstd);
    for (((x, dy), dx), &rstd) in rows {
        let projection = sum_map3(x, dy, weight, |x, dy, w| x * dy * plus(w));
        let slope = projection * rstd * rstd / dim as f32;
        for ((((x, w), dy), dx), d_weight) in x.iter().zip(weight).zip(dy).zip(dx).zip(&mut *d_weight) {
            let (x, dy) = (x.to_f32(), dy.to_f32());
            store.put(dx, rstd * (dy * plus(w.to_f32()) - x * slope));
            *d_weight += dy * x * rstd;
        }
    }
}

instances! {
    /// `y = (x - mean) * rstd * weight + bias`, with `rstd = 1 / sqrt(variance + eps)`; mean and rstd are kept.
    pub fn layer_norm_forward[T: Float](
        cpu: &Cpu,
        x: &[T],
        weight: &[T],
        bias: Option<&[T]>,
        eps: f32,
        y: &mut [T],
        mean: &mut [f32],
        rstd: &mut [f32],
    ) {
        let dim = row_length("layer_norm_forward", weight, &[x.len(), y.len()], &[mean.len(), rstd.len()]);
        assert!(bias.is_none_or(|b| b.len() == dim), "layer_norm_forward: bias");
        let task = task_rows(dim);
        let n_tasks = rstd.len().div_ceil(task);
        let outputs = (cut(y, task * dim), cut(mean, task), cut(rstd, task));
        for_pieces(&cpu.par, n_tasks, outputs, |i, (y, mean, rstd)| {
            layer_forward_task(cpu.isa, &x[i * task * dim..], weight, bias, eps, y, mean, rstd);
        });
    }
}

multiversion! {
    fn layer_forward_task[T: Float](
        x: &[T], weight: &[T], bias: Option<&[T]>, eps: f32, y: &mut [T], mean: &mut [f32], rstd: &mut [f32],
    ) {
        let dim = weight.len();
        let rows = x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)).zip(mean.iter_mut().zip(rstd));
        for ((x, y), (mean, rstd)) in rows {
            let m = sum_map(x, |x| x) / dim as f32;
            let variance = sum_map(x, |x| (x - m) * (x - m)) / dim as f32;
            let r = 1.0 / (variance + eps).sqrt();
            (*mean, *rstd) = (m, r);
            match bias {
                None => {
                    for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                        *y = T::from_f32((x.to_f32() - m) * r * w.to_f32());
                    }
                }
                Some(bias) => {
                    for (((y, x), w), b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                        *y = T::from_f32((x.to_f32() - m) * r * w.to_f32() + b.to_f32());
                    }
                }
            }
        }
    }
}

/// The f32 elements of scratch that [`layer_norm_backward`] needs.
pub fn layer_norm_backward_scratch(rows: usize, dim: usize) -> usize {
    2 * partial_rows(rows, dim)
}

instances! {
    /// Gradients of [`layer_norm_forward`]; `d_bias` where there is a bias.
    pub fn layer_norm_backward[T: Float](
        cpu: &Cpu,
        x: &[T],
        weight: &[T],
        mean: &[f32],
        rstd: &[f32],
        dy: &[T],
        dx: (&mut [T], Store),
        d_weight: (&mut [f32], Store),
        d_bias: Option<(&mut [f32], Store)>,
        scratch: &mut [f32],
    ) {
        let (dx, dx_store) = dx;
        let (d_weight, d_weight_store) = d_weight;
        let lengths = [x.len(), dy.len(), dx.len()];
        let dim = row_length("layer_norm_backward", weight, &lengths, &[mean.len(), rstd.len()]);
        assert_eq!(d_weight.len(), dim, "layer_norm_backward: d_weight");
        let n = partial_rows(rstd.len(), dim);
        let (weights, biases) = scratch[..2 * n].split_at_mut(n);
        let n_blocks = rstd.len().div_ceil(ROW_BLOCK);
        let outputs = (cut(dx, ROW_BLOCK * dim), cut(weights, dim), cut(biases, dim));
        for_pieces(&cpu.par, n_blocks, outputs, |i, (dx, d_weight, d_bias)| {
            let (from, row) = (i * ROW_BLOCK * dim, i * ROW_BLOCK);
            let (x, dy, mean, rstd) = (&x[from..], &dy[from..], &mean[row..], &rstd[row..]);
            layer_backward_block(cpu.isa, x, weight, mean, rstd, dy, dx, dx_store, d_weight, d_bias);
        });
        store_sum_of_rows(cpu, weights, d_weight, d_weight_store);
        if let Some((d_bias, store)) = d_bias {
            assert_eq!(d_bias.len(), dim, "layer_norm_backward: d_bias");
            store_sum_of_rows(cpu, biases, d_bias, store);
        }
    }
}

multiversion! {
    fn layer_backward_block[T: Float](
        x: &[T], weight: &[T], mean: &[f32], rstd: &[f32], dy: &[T], dx: &mut [T], store: Store,
        d_weight: &mut [f32], d_bias: &mut [f32],
    ) {
        let dim = weight.len();
        d_weight.fill(0.0);
        d_bias.fill(0.0);
        let rows = x.chunks_exact(dim).zip(dy.chunks_exact(dim)).zip(dx.chunks_exact_mut(dim));
        for (((x, dy), dx), (&m, &r)) in rows.zip(mean.iter().zip(rstd)) {
            let offset = sum_map2(dy, weight, |dy, w| dy * w) / dim as f32;
            let slope = sum_map3(x, dy, weight, |x, dy, w| (x - m) * r * dy * w) / dim as f32;
            let sums = d_weight.iter_mut().zip(d_bias.iter_mut());
            for ((((x, w), dy), dx), (d_weight, d_bias)) in x.iter().zip(weight).zip(dy).zip(dx).zip(sums) {
                let (x_hat, dy) = ((x.to_f32() - m) * r, dy.to_f32());
                store.put(dx, r * (dy * w.to_f32() - offset - x_hat * slope));
                *d_weight += dy * x_hat;
                *d_bias += dy;
            }
        }
    }
}
