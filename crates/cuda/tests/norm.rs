//! RMSNorm and LayerNorm against f64 references.

use half::{bf16, f16};
use oarlock_cuda::{Element, geometry};
use oarlock_reference::norm::{Case, EPS, Results, SHAPES};

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, values};

/// The sum of rows of partial sums.
fn total(partials: &[f32], dim: usize) -> Vec<f32> {
    (0..dim).map(|j| partials.iter().skip(j).step_by(dim).sum()).collect()
}

fn rms<X: Float, W: Float, Y: Float>(library: &Library, rows: usize, dim: usize, offset: f32) {
    let c = Case::<X, W, Y>::new(rows, dim);
    let dtypes = [X::ELEMENT, W::ELEMENT, Y::ELEMENT];
    let (n, d) = (rows as u32, dim as u32);
    let got = in_every_order(library, |gpu| {
        let (x, weight, dy) = (gpu.buffer(&c.x), gpu.buffer(&c.weight), gpu.buffer(&c.dy));
        let (y, again, rstd) =
            (gpu.fresh::<Y>(rows * dim), gpu.fresh::<Y>(rows * dim), gpu.fresh::<f32>(rows));
        let by_rows = geometry::rows(rows, dim);
        gpu.run("rms_norm_forward", &dtypes, by_rows, args![x, weight, offset, EPS, y, rstd, n, d]);
        gpu.run("rms_norm_apply", &dtypes, by_rows, args![x, weight, offset, rstd, again, n, d]);
        assert_eq!(y.read(), again.read());
        let backward = |add: u32| {
            let dx = if add == 1 { gpu.buffer(&c.start) } else { gpu.fresh(rows * dim) };
            let partials = gpu.fresh::<f32>(geometry::norm_partials(rows) * dim);
            let grid = geometry::norm_backward(rows, dim, 1);
            let (rounded, again) = (gpu.fresh::<Y>(rows * dim), gpu.fresh::<Y>(rows * dim));
            let to = [&rounded, &again].map(|to| (add == 1).then_some(to));
            let args = args![x, weight, offset, rstd, dy, dx, to[0], to[1], add, partials, n, d];
            gpu.run("rms_norm_backward", &dtypes, grid, args);
            if add == 1 {
                let whole: Vec<Y> = dx.read().iter().map(|dx| Y::of(dx.f64())).collect();
                assert_eq!(rounded.read(), whole, "the gradient in the type of the output");
                assert_eq!(again.read(), y.read(), "the output once more");
            }
            (dx.read(), total(&partials.read(), dim))
        };
        let ((dx, d_weight), (added, _)) = (backward(0), backward(1));
        Results { y: y.read(), dx, added, d_weight, d_bias: vec![] }
    });
    c.rms_norm(offset).check(&got);
}

/// A norm of a stream to which a part is added: the same bits as by two kernels.
fn add_rms<Y: Float>(library: &Library, rows: usize, dim: usize) {
    let (stream, weight) = (values::<f32>(1, rows * dim), values::<f32>(2, dim));
    let part = values::<Y>(3, rows * dim);
    let added: Vec<f32> = stream.iter().zip(&part).map(|(x, part)| x + part.f64() as f32).collect();
    let dtypes = [Element::F32, Element::F32, Y::ELEMENT];
    let (n, d, offset, eps) = (rows as u32, dim as u32, 0f32, EPS);
    let (by_one, by_two) = in_every_order(library, |gpu| {
        let (stream, part, weight) = (gpu.buffer(&stream), gpu.buffer(&part), gpu.buffer(&weight));
        let fresh = || (gpu.fresh::<f32>(rows * dim), gpu.fresh::<Y>(rows * dim), gpu.fresh::<f32>(rows));
        let by_rows = geometry::rows(rows, dim);
        let (sum, y, rstd) = fresh();
        let args = args![stream, part, sum, weight, offset, eps, y, rstd, n, d];
        gpu.run("add_rms_norm_forward", &dtypes, by_rows, args);
        let by_one = (sum.read(), y.read(), rstd.read());
        let (_, y, rstd) = fresh();
        let sum = gpu.buffer(&added);
        gpu.run("rms_norm_forward", &dtypes, by_rows, args![sum, weight, offset, eps, y, rstd, n, d]);
        (by_one, (added.clone(), y.read(), rstd.read()))
    });
    assert_eq!(by_one, by_two, "{rows} rows of {dim}");
}

#[test]
fn a_norm_adds_a_part_to_its_rows_first() {
    on_emulator(|library| {
        add_rms::<f32>(library, 33, 513);
        add_rms::<f32>(library, 3, 1160);
        add_rms::<bf16>(library, 35, 96);
        add_rms::<f16>(library, 2, 8 * 1024 + 24);
    });
}

/// The lanes of a warp that access eight sums each, four by four in turns of eight lanes, meet all banks.
#[test]
fn sums_of_weights_lie_in_different_banks() {
    let place = |c: usize| c ^ ((c >> 5 & 1) << 2);
    for first in (0..2048).step_by(64) {
        for half in [0, 4] {
            let mut banks: Vec<usize> = (0..8).map(|lane| place(first + 8 * lane + half) / 4 % 8).collect();
            banks.sort_unstable();
            assert_eq!(banks, [0, 1, 2, 3, 4, 5, 6, 7], "from column {first} on");
        }
    }
    let text = oarlock_cuda::source::NORM.text;
    assert!(text.contains("return c ^ (c >> 5 & 1) << 2;"), "the formula of the kernel is another one");
}

/// Every kernel of the family, those for f32 first.
pub fn check(library: &Library) {
    add_rms::<f32>(library, 70, 64);
    add_rms::<f32>(library, 3, 7);
    for (rows, dim) in SHAPES {
        rms::<f32, f32, f32>(library, rows, dim, 0.0);
        layer::<f32>(library, rows, dim, true);
    }
    rms::<bf16, bf16, bf16>(library, 70, 64, 1.0);
    rms::<bf16, bf16, bf16>(library, 3, 1160, 0.0);
    rms::<f16, f16, f16>(library, 33, 70, 1.0);
    rms::<f32, f32, bf16>(library, 33, 72, 0.0);
    rms::<f32, f32, f16>(library, 33, 70, 0.0);
    rms::<bf16, f32, bf16>(library, 9, 1025, 0.0);
    rms::<f16, f32, f16>(library, 9, 48, 0.0);
    layer::<bf16>(library, 33, 1160, true);
    layer::<f16>(library, 9, 65, false);
}

fn layer<T: Float>(library: &Library, rows: usize, dim: usize, with_bias: bool) {
    let c = Case::<T, T, T>::new(rows, dim);
    let c = if with_bias { c } else { c.without_bias() };
    let (n, d) = (rows as u32, dim as u32);
    let got = in_every_order(library, |gpu| {
        let (x, weight, bias, dy) =
            (gpu.buffer(&c.x), gpu.buffer(&c.weight), gpu.buffer(&c.bias), gpu.buffer(&c.dy));
        let (y, mean, rstd) = (gpu.fresh::<T>(rows * dim), gpu.fresh::<f32>(rows), gpu.fresh::<f32>(rows));
        let bias = with_bias.then_some(&bias);
        let forward = args![x, weight, bias, EPS, y, mean, rstd, n, d];
        gpu.run("layer_norm_forward", &[T::ELEMENT], geometry::rows(rows, dim), forward);
        let backward = |add: u32| {
            let dx = if add == 1 { gpu.buffer(&c.start) } else { gpu.fresh(rows * dim) };
            let n_partials = geometry::norm_partials(rows) * dim;
            let (dw, db) = (gpu.fresh::<f32>(n_partials), gpu.fresh::<f32>(n_partials));
            let backward = args![x, weight, mean, rstd, dy, dx, add, dw, db, n, d];
            gpu.run("layer_norm_backward", &[T::ELEMENT], geometry::norm_backward(rows, dim, 2), backward);
            (dx.read(), total(&dw.read(), dim), total(&db.read(), dim))
        };
        let ((dx, d_weight, d_bias), (added, ..)) = (backward(0), backward(1));
        Results { y: y.read(), dx, added, d_weight, d_bias }
    });
    c.layer_norm().check(&got);
}

#[test]
fn norms_match_the_reference() {
    on_emulator(check);
}
