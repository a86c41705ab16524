//! Rotary position embedding against f64, and its inverse.

use half::{bf16, f16};
use oarlock_cuda::geometry;
use oarlock_reference::compare::tolerance;
use oarlock_reference::rope::{Pairs, SHAPES, of_rows};

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, indices, values};

/// Angles of 16 positions.
fn angles(half: usize) -> Vec<f64> {
    (0..16 * half).map(|i| (i / half) as f64 / 10f64.powf((i % half) as f64 / 5.0)).collect()
}

/// Their cosines and sines.
fn tables(angles: &[f64]) -> [Vec<f32>; 2] {
    [f64::cos, f64::sin].map(|f: fn(f64) -> f64| angles.iter().map(|angle| f(*angle) as f32).collect())
}

fn pairs(interleaved: bool) -> Pairs {
    if interleaved { Pairs::Neighbors } else { Pairs::Halves }
}

fn rope<T: Float>(library: &Library, interleaved: bool, explicit: bool, [head_dim, half]: [usize; 2]) {
    let (rows, heads, seq, offset) = (10, 3, 4, 2);
    let x = values::<T>(1, rows * heads * head_dim);
    let angles = angles(half);
    let [cos, sin] = tables(&angles);
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
    let want = of_rows(x.clone(), [heads, head_dim], (pairs(interleaved), half), &angles, position);
    assert_close("rope", &there, &want, tolerance::<T>(1e-6, 1.0));
    assert_close("its inverse", &back, &x, tolerance::<T>(2e-6, 3.0));
}

/// Queries, keys and values of one product, into three tensors and back.
fn of_one_product<T: Float>(
    library: &Library,
    interleaved: bool,
    [heads, kv_heads, head_dim, half]: [usize; 4],
) {
    let (rows, seq, offset, all) = (6, 4, 2, heads + 2 * kv_heads);
    let x = values::<T>(1, rows * all * head_dim);
    let angles = angles(half);
    let [cos, sin] = tables(&angles);
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
        of_rows(part, [heads, head_dim], (pairs(interleaved), half), &angles, |row| row % seq + offset)
    };
    assert_close("q", &q, &turned(part(0, heads), heads), tolerance::<T>(1e-6, 1.0));
    assert_close("k", &k, &turned(part(heads, kv_heads), kv_heads), tolerance::<T>(1e-6, 1.0));
    assert_close("v", &v, &part(heads + kv_heads, kv_heads), 0.0);
    assert_close("what is joined", &back, &x, tolerance::<T>(2e-6, 3.0));
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    of_one_product::<f32>(library, false, [4, 2, 16, 8]);
    of_one_product::<f32>(library, true, [3, 1, 24, 8]);
    of_one_product::<f32>(library, false, [2, 2, 14, 5]);
    of_one_product::<bf16>(library, false, [3, 1, 64, 32]);
    of_one_product::<f16>(library, true, [2, 1, 10, 5]);
    for shape in SHAPES {
        rope::<f32>(library, false, false, shape);
        rope::<f32>(library, true, true, shape);
    }
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
