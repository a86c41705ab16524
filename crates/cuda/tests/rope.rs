//! Rotary position embedding against f64, and its inverse.

use half::{bf16, f16};
use oarlock_cuda::geometry;

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, indices, values};

/// Cosines and sines of 16 positions.
fn angles(half: usize) -> (Vec<f32>, Vec<f32>) {
    let table = |f: fn(f64) -> f64| -> Vec<f32> {
        (0..16 * half).map(|i| f((i / half) as f64 / 10f64.powf((i % half) as f64 / 5.0)) as f32).collect()
    };
    (table(f64::cos), table(f64::sin))
}

/// Rows of heads, turned to the positions of the rows.
fn turned(
    x: &[f64],
    heads: usize,
    (cos, sin): (&[f32], &[f32]),
    interleaved: bool,
    [head_dim, half]: [usize; 2],
    position: impl Fn(usize) -> usize,
) -> Vec<f64> {
    let mut want = x.to_vec();
    for (at, _) in x.iter().enumerate().step_by(head_dim) {
        let position = position(at / head_dim / heads);
        for j in 0..half {
            let (a, b) = if interleaved { (2 * j, 2 * j + 1) } else { (j, j + half) };
            let (c, s) = (f64::from(cos[position * half + j]), f64::from(sin[position * half + j]));
            want[at + a] = x[at + a] * c - x[at + b] * s;
            want[at + b] = x[at + b] * c + x[at + a] * s;
        }
    }
    want
}

fn rope<T: Float>(library: &Library, interleaved: bool, explicit: bool, [head_dim, half]: [usize; 2]) {
    let (rows, heads, seq, offset) = (10, 3, 4, 2);
    let x = values::<T>(1, rows * heads * head_dim);
    let (cos, sin) = angles(half);
    let places = indices(2, rows, 16);
    let (there, back) = in_every_order(library, |gpu| {
        let (buffer, cos, sin, places) =
            (gpu.buffer(&x), gpu.buffer(&cos), gpu.buffer(&sin), gpu.buffer(&places));
        let positions: Option<&Buffer<i32>> = explicit.then_some(&places);
        let turn = |from: &Buffer<T>, sign: f32| {
            let to = gpu.fresh::<T>(x.len());
            let (s, o, r, h) = (seq as u32, offset as u32, rows as u32, heads as u32);
            let (d, half, style) = (head_dim as u32, half as u32, u32::from(interleaved));
            let args = args![from, to, cos, sin, positions, s, o, sign, r, h, d, half, style];
            gpu.run("rope", &[T::ELEMENT], geometry::elements(x.len()), args);
            to
        };
        let there = turn(&buffer, 1.0);
        (there.read(), turn(&there, -1.0).read())
    });
    let x = f64s(&x);
    let position = |row: usize| if explicit { places[row] as usize } else { row % seq + offset };
    let want = turned(&x, heads, (&cos, &sin), interleaved, [head_dim, half], position);
    assert_close("rope", &there, &want, 1e-6 + T::ROUNDING);
    assert_close("its inverse", &back, &x, 2e-6 + 3.0 * T::ROUNDING);
}

/// Queries, keys and values of one product, into three tensors and back.
fn of_one_product<T: Float>(
    library: &Library,
    interleaved: bool,
    [heads, kv_heads, head_dim, half]: [usize; 4],
) {
    let (rows, seq, offset, all) = (6, 4, 2, heads + 2 * kv_heads);
    let x = values::<T>(1, rows * all * head_dim);
    let (cos, sin) = angles(half);
    let sizes = [heads, kv_heads, kv_heads].map(|heads| rows * heads * head_dim);
    let (q, k, v, back) = in_every_order(library, |gpu| {
        let (from, cos, sin) = (gpu.buffer(&x), gpu.buffer(&cos), gpu.buffer(&sin));
        let [q, k, v] = sizes.map(|n| gpu.fresh::<T>(n));
        let (back, grid) = (gpu.fresh::<T>(x.len()), geometry::elements(x.len()));
        let (s, o, r, style) = (seq as u32, offset as u32, rows as u32, u32::from(interleaved));
        let [h, g, d, half] = [heads, kv_heads, head_dim, half].map(|n| n as u32);
        gpu.run(
            "rope_split",
            &[T::ELEMENT],
            grid,
            args![from, q, k, v, cos, sin, s, o, r, h, g, d, half, style],
        );
        gpu.run(
            "rope_join",
            &[T::ELEMENT],
            grid,
            args![q, k, v, back, cos, sin, s, o, r, h, g, d, half, style],
        );
        (q.read(), k.read(), v.read(), back.read())
    });
    let x = f64s(&x);
    let part = |first: usize, n: usize| -> Vec<f64> {
        x.chunks(all * head_dim).flat_map(|row| row[first * head_dim..][..n * head_dim].to_vec()).collect()
    };
    let turned = |part: Vec<f64>, heads| {
        turned(&part, heads, (&cos, &sin), interleaved, [head_dim, half], |row| row % seq + offset)
    };
    assert_close("q", &q, &turned(part(0, heads), heads), 1e-6 + T::ROUNDING);
    assert_close("k", &k, &turned(part(heads, kv_heads), kv_heads), 1e-6 + T::ROUNDING);
    assert_close("v", &v, &part(heads + kv_heads, kv_heads), 0.0);
    assert_close("what is joined", &back, &x, 2e-6 + 3.0 * T::ROUNDING);
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    of_one_product::<f32>(library, false, [4, 2, 16, 8]);
    of_one_product::<f32>(library, true, [3, 1, 24, 8]);
    of_one_product::<f32>(library, false, [2, 2, 14, 5]);
    of_one_product::<bf16>(library, false, [3, 1, 64, 32]);
    of_one_product::<f16>(library, true, [2, 1, 10, 5]);
    rope::<f32>(library, false, false, [14, 5]);
    rope::<f32>(library, true, true, [14, 5]);
    // In packs, all elements of a head or some.
    rope::<f32>(library, true, false, [32, 8]);
    rope::<bf16>(library, false, true, [14, 5]);
    rope::<f16>(library, true, false, [14, 7]);
    rope::<bf16>(library, false, false, [64, 32]);
    rope::<f16>(library, false, true, [40, 8]);
    rope::<bf16>(library, true, true, [16, 8]);
}

#[test]
fn rotations_match_the_reference() {
    on_emulator(check);
}
