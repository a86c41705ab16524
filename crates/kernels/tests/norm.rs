//! RMSNorm and LayerNorm against f64 references.

use oarlock_kernels::norm::{
    RmsWeight, layer_norm_backward, layer_norm_backward_scratch, layer_norm_forward, rms_norm_apply,
    rms_norm_backward, rms_norm_backward_scratch, rms_norm_forward,
};
use oarlock_kernels::{Float, Store, bf16, f16};
use oarlock_reference::norm::{Case, EPS, Results, SHAPES};

use crate::everywhere::{Element, assert_close, same_everywhere, values};

fn rms<T: Element>(rows: usize, dim: usize, offset: f32) {
    let c = Case::<T, T, T>::new(rows, dim);
    let (got, dw_added) = same_everywhere(|cpu| {
        let (mut y, mut rstd) = (c.start.clone(), vec![0.0; rows]);
        let w = RmsWeight { weight: &c.weight[..], offset };
        rms_norm_forward(cpu, &c.x, w, EPS, &mut y, &mut rstd);
        let mut again = c.start.clone();
        rms_norm_apply(cpu, &c.x, w, &rstd, &mut again);
        assert_eq!(y, again);
        let backward = |store, mut dx: Vec<T>, mut dw: Vec<f32>| {
            let mut scratch = vec![f32::NAN; rms_norm_backward_scratch(rows, dim)];
            let (x, dy) = (&c.x, &c.dy);
            rms_norm_backward(cpu, x, w, &rstd, dy, (&mut dx, store), (&mut dw, store), &mut scratch);
            (dx, dw)
        };
        let (dx, d_weight) = backward(Store::Overwrite, c.start.clone(), vec![f32::NAN; dim]);
        let (added, dw_added) = backward(Store::Add, c.start.clone(), vec![2.0; dim]);
        (Results { y, dx, added, d_weight, d_bias: vec![] }, dw_added)
    });
    let want = c.rms_norm(offset);
    want.check(&got);
    assert_close(
        "d_weight added",
        &dw_added,
        &want.d_weight.iter().map(|x| x + 2.0).collect::<Vec<_>>(),
        1e-5,
    );
}

#[test]
fn rms_norm_matches_the_reference() {
    for (rows, dim) in SHAPES.into_iter().chain([(129, 96)]) {
        for offset in [0.0, 1.0] {
            rms::<f32>(rows, dim, offset);
            rms::<bf16>(rows, dim, offset);
            rms::<f16>(rows, dim, offset);
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
        rms_norm_forward(cpu, &x, short, EPS, &mut y, &mut rstd);
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

fn layer<T: Element>(rows: usize, dim: usize) {
    let c = Case::<T, T, T>::new(rows, dim);
    let got = same_everywhere(|cpu| {
        let (mut y, mut mean, mut rstd) = (c.x.clone(), vec![0.0; rows], vec![0.0; rows]);
        layer_norm_forward(cpu, &c.x, &c.weight, Some(&c.bias), EPS, &mut y, &mut mean, &mut rstd);
        let backward = |store, mut dx: Vec<T>, start: f32| {
            let mut scratch = vec![f32::NAN; layer_norm_backward_scratch(rows, dim)];
            let (mut dw, mut db) = (vec![start; dim], vec![start; dim]);
            let (x, w, dy, dx_out) = (&c.x, &c.weight, &c.dy, (&mut dx[..], store));
            let (dw_out, db_out) = ((&mut dw[..], store), Some((&mut db[..], store)));
            layer_norm_backward(cpu, x, w, &mean, &rstd, dy, dx_out, dw_out, db_out, &mut scratch);
            (dx, dw, db)
        };
        let (dx, d_weight, d_bias) = backward(Store::Overwrite, c.x.clone(), f32::NAN);
        let (added, ..) = backward(Store::Add, c.start.clone(), 1.0);
        Results { y, dx, added, d_weight, d_bias }
    });
    c.layer_norm().check(&got);
}

#[test]
fn layer_norm_matches_the_reference() {
    for (rows, dim) in SHAPES.into_iter().chain([(129, 96)]) {
        layer::<f32>(rows, dim);
        layer::<bf16>(rows, dim);
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
