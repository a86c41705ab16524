//! RMSNorm and LayerNorm over rows, forward and backward.
//!
//! The rows and the weight of an RMSNorm may be f32 where its output is 16-bit: residual streams are sums of many parts,
//! and weights are near one, where 16 bits are coarse. The output is rounded once.
//! Weight gradients are sums over rows: sequential inside blocks of [`ROW_BLOCK`] rows, a pairwise tree over blocks.

use super::isa::multiversion;
use super::lanes::{sum_map, sum_map2, sum_map3};
use super::pieces::{cut, for_pieces, task_rows};
use super::sums::{ROW_BLOCK, partial_rows, store_sum_of_rows};
use super::{Cpu, Store};
use crate::dtype::Float;

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

/// `y = x * rstd * (offset + weight)`, rounded once to y's type. `rstd = 1 / sqrt(mean(x^2) + eps)` is kept for the
/// backward pass.
pub fn rms_norm_forward<X: Float, W: Float, Y: Float>(
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

/// [`rms_norm_forward`] with `rstd` known: the output again, to the bit.
pub fn rms_norm_apply<X: Float, W: Float, Y: Float>(
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

/// Gradients of [`rms_norm_forward`]: `dx` and `d_weight`, each overwritten or added to.
pub fn rms_norm_backward<X: Float, W: Float, Y: Float>(
    cpu: &Cpu,
    x: &[X],
    weight: RmsWeight<'_, W>,
    rstd: &[f32],
    dy: &[Y],
    (dx, dx_store): (&mut [X], Store),
    (d_weight, d_weight_store): (&mut [f32], Store),
    scratch: &mut [f32],
) {
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

/// `y = (x - mean) * rstd * weight + bias`, with `rstd = 1 / sqrt(variance + eps)`; mean and rstd are kept.
pub fn layer_norm_forward<T: Float>(
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

/// Gradients of [`layer_norm_forward`]; `d_bias` where there is a bias.
pub fn layer_norm_backward<T: Float>(
    cpu: &Cpu,
    x: &[T],
    weight: &[T],
    mean: &[f32],
    rstd: &[f32],
    dy: &[T],
    (dx, dx_store): (&mut [T], Store),
    (d_weight, d_weight_store): (&mut [f32], Store),
    d_bias: Option<(&mut [f32], Store)>,
    scratch: &mut [f32],
) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, f64s, same_everywhere, values};
    use crate::dtype::{bf16, f16};

    const EPS: f64 = 1e-5;
    const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 7), (70, 64), (33, 513), (129, 96)];

    struct Case<T> {
        x: Vec<T>,
        weight: Vec<T>,
        bias: Vec<T>,
        dy: Vec<T>,
    }

    fn case<T: Float>(rows: usize, dim: usize) -> Case<T> {
        let n = rows * dim;
        Case { x: values(1, n), weight: values(2, dim), bias: values(3, dim), dy: values(4, n) }
    }

    /// Output, dx, d_weight and d_bias of a norm in f64; RMSNorm where `centre` is 0.
    fn reference<T: Float>(c: &Case<T>, w: Vec<f64>, centre: f64) -> [Vec<f64>; 4] {
        let (x, b, dy) = (f64s(&c.x), f64s(&c.bias), f64s(&c.dy));
        let dim = w.len();
        let n = dim as f64;
        let (mut y, mut dx, mut dw, mut db) = (vec![], vec![], vec![0.0; dim], vec![0.0; dim]);
        for (x, dy) in x.chunks(dim).zip(dy.chunks(dim)) {
            let mean = centre * x.iter().sum::<f64>() / n;
            let r = 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + EPS).sqrt();
            let x_hat: Vec<f64> = x.iter().map(|x| (x - mean) * r).collect();
            let g: Vec<f64> = dy.iter().zip(&w).map(|(dy, w)| dy * w).collect();
            let offset = centre * g.iter().sum::<f64>() / n;
            let slope = g.iter().zip(&x_hat).map(|(g, x)| g * x).sum::<f64>() / n;
            for j in 0..dim {
                y.push(x_hat[j] * w[j] + centre * b[j]);
                dx.push(r * (g[j] - offset - x_hat[j] * slope));
                dw[j] += dy[j] * x_hat[j];
                db[j] += dy[j];
            }
        }
        [y, dx, dw, db]
    }

    fn rms<T: Float>(rows: usize, dim: usize, offset: f32, tolerance: f64) {
        let c = case::<T>(rows, dim);
        let start = values::<T>(5, rows * dim);
        let (y, dx, dx_added, dw, dw_added) = same_everywhere(|cpu| {
            let (mut y, mut rstd) = (start.clone(), vec![0.0; rows]);
            let w = RmsWeight { weight: &c.weight[..], offset };
            rms_norm_forward(cpu, &c.x, w, EPS as f32, &mut y, &mut rstd);
            let mut again = start.clone();
            rms_norm_apply(cpu, &c.x, w, &rstd, &mut again);
            assert_eq!(y, again);
            let backward = |store, mut dx: Vec<T>, mut dw: Vec<f32>| {
                let mut scratch = vec![f32::NAN; rms_norm_backward_scratch(rows, dim)];
                let (x, dy) = (&c.x, &c.dy);
                rms_norm_backward(cpu, x, w, &rstd, dy, (&mut dx, store), (&mut dw, store), &mut scratch);
                (dx, dw)
            };
            let (dx, dw) = backward(Store::Overwrite, start.clone(), vec![f32::NAN; dim]);
            let (dx_added, dw_added) = backward(Store::Add, start.clone(), vec![2.0; dim]);
            (y, dx, dx_added, dw, dw_added)
        });
        let wide = f64s(&c.weight).iter().map(|w| w + f64::from(offset)).collect();
        let [want_y, want_dx, want_dw, _] = reference(&c, wide, 0.0);
        assert_close(&y, &want_y, tolerance);
        assert_close(&dx, &want_dx, tolerance);
        let added: Vec<f64> = want_dx.iter().zip(f64s(&start)).map(|(dx, s)| dx + s).collect();
        assert_close(&dx_added, &added, tolerance);
        assert_close(&dw, &want_dw, tolerance * 2.0);
        assert_close(&dw_added, &want_dw.iter().map(|x| x + 2.0).collect::<Vec<_>>(), tolerance * 2.0);
    }

    #[test]
    fn rms_norm_matches_the_reference() {
        for (rows, dim) in SHAPES {
            for offset in [0.0, 1.0] {
                rms::<f32>(rows, dim, offset, 2e-5);
                rms::<bf16>(rows, dim, offset, 0.02);
                rms::<f16>(rows, dim, offset, 0.003);
            }
        }
    }

    #[test]
    fn an_f32_weight_serves_16_bit_rows() {
        let (rows, dim) = (5, 96);
        let (x, weight) = (values::<bf16>(1, rows * dim), values::<bf16>(2, dim));
        let wide: Vec<f32> = weight.iter().map(|w| Float::to_f32(*w)).collect();
        same_everywhere(|cpu| {
            let (mut y, mut again, mut rstd) = (x.clone(), x.clone(), vec![0.0; rows]);
            let short = RmsWeight { weight: &weight[..], offset: 0.0 };
            rms_norm_forward(cpu, &x, short, EPS as f32, &mut y, &mut rstd);
            rms_norm_apply(cpu, &x, RmsWeight { weight: &wide[..], offset: 0.0 }, &rstd, &mut again);
            assert_eq!(y, again);
        });
    }

    #[test]
    fn no_offset_keeps_the_sign_of_zero() {
        let cpu = &crate::cpu::testing::cpus()[0];
        let (mut y, mut rstd) = ([1f32], [0f32]);
        rms_norm_forward(cpu, &[2f32], RmsWeight { weight: &[-0f32], offset: 0.0 }, 1e-6, &mut y, &mut rstd);
        assert_eq!(y[0].to_bits(), (-0f32).to_bits());
    }

    fn layer<T: Float>(rows: usize, dim: usize, tolerance: f64) {
        let c = case::<T>(rows, dim);
        let (y, dx, dw, db) = same_everywhere(|cpu| {
            let (mut y, mut mean, mut rstd) = (c.x.clone(), vec![0.0; rows], vec![0.0; rows]);
            let bias = Some(&c.bias[..]);
            layer_norm_forward(cpu, &c.x, &c.weight, bias, EPS as f32, &mut y, &mut mean, &mut rstd);
            let mut scratch = vec![f32::NAN; layer_norm_backward_scratch(rows, dim)];
            let (mut dx, mut dw, mut db) = (c.x.clone(), vec![1.0; dim], vec![f32::NAN; dim]);
            let (x, w, dy) = (&c.x, &c.weight, &c.dy);
            let (dx_out, dw_out) = ((&mut dx[..], Store::Overwrite), (&mut dw[..], Store::Add));
            let db_out = Some((&mut db[..], Store::Overwrite));
            layer_norm_backward(cpu, x, w, &mean, &rstd, dy, dx_out, dw_out, db_out, &mut scratch);
            (y, dx, dw, db)
        });
        let [want_y, want_dx, want_dw, want_db] = reference(&c, f64s(&c.weight), 1.0);
        assert_close(&y, &want_y, tolerance);
        assert_close(&dx, &want_dx, tolerance);
        assert_close(&dw, &want_dw.iter().map(|x| x + 1.0).collect::<Vec<_>>(), tolerance);
        assert_close(&db, &want_db, tolerance);
    }

    #[test]
    fn layer_norm_matches_the_reference() {
        for (rows, dim) in SHAPES.into_iter().filter(|s| s.1 > 1) {
            layer::<f32>(rows, dim, 1e-4);
            layer::<bf16>(rows, dim, 0.02);
        }
        let x = values::<f32>(1, 64);
        let (mut plain, mut zero, mut s) = (x.clone(), x.clone(), [0.0; 4]);
        let (mean, rstd) = s.split_at_mut(2);
        let cpu = &crate::cpu::testing::cpus()[0];
        layer_norm_forward(cpu, &x, &x[..32], None, 1e-5, &mut plain, mean, rstd);
        layer_norm_forward(cpu, &x, &x[..32], Some(&[0.0; 32]), 1e-5, &mut zero, mean, rstd);
        assert_eq!(plain, zero, "no bias is a bias of zero");
    }

    #[test]
    fn no_rows_leave_a_gradient_of_zero() {
        let cpu = &crate::cpu::testing::cpus()[0];
        let mut dw = [3.0f32; 4];
        let (dx, weight) = (&mut [0f32; 0][..], [1.0f32; 4]);
        rms_norm_backward::<f32, f32, f32>(
            cpu,
            &[],
            RmsWeight { weight: &weight, offset: 0.0 },
            &[],
            &[],
            (dx, Store::Overwrite),
            (&mut dw, Store::Overwrite),
            &mut [],
        );
        assert_eq!(dw, [0.0; 4]);
    }
}
