//! RMSNorm and LayerNorm against f64 references.

use oarlock_kernels::norm::{
    RmsWeight, layer_norm_backward, layer_norm_backward_scratch, layer_norm_forward, rms_norm_apply,
    rms_norm_backward, rms_norm_backward_scratch, rms_norm_forward,
};
use oarlock_kernels::{Float, Store, bf16, f16};

use crate::everywhere::{assert_close, f64s, same_everywhere, values};

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
    let cpu = &crate::everywhere::cpus()[0];
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
    let cpu = &crate::everywhere::cpus()[0];
    layer_norm_forward(cpu, &x, &x[..32], None, 1e-5, &mut plain, mean, rstd);
    layer_norm_forward(cpu, &x, &x[..32], Some(&[0.0; 32]), 1e-5, &mut zero, mean, rstd);
    assert_eq!(plain, zero, "no bias is a bias of zero");
}

#[test]
fn no_rows_leave_a_gradient_of_zero() {
    let cpu = &crate::everywhere::cpus()[0];
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
