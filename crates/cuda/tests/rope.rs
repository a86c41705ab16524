//! Rotary position embedding against f64, and its inverse.

use half::{bf16, f16};
use oarlock_cuda::geometry;

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, indices, values};

fn rope<T: Float>(library: &Library, interleaved: bool, explicit: bool, [head_dim, half]: [usize; 2]) {
    let (rows, heads, seq, offset) = (10, 3, 4, 2);
    let x = values::<T>(1, rows * heads * head_dim);
    let table = |f: fn(f64) -> f64| -> Vec<f32> {
        (0..16 * half).map(|i| f((i / half) as f64 / 10f64.powf((i % half) as f64 / 5.0)) as f32).collect()
    };
    let (cos, sin) = (table(f64::cos), table(f64::sin));
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
    let mut want = x.clone();
    for (at, _) in x.iter().enumerate().step_by(head_dim) {
        let row = at / head_dim / heads;
        let position = if explicit { places[row] as usize } else { row % seq + offset };
        for j in 0..half {
            let (a, b) = if interleaved { (2 * j, 2 * j + 1) } else { (j, j + half) };
            let (c, s) = (f64::from(cos[position * half + j]), f64::from(sin[position * half + j]));
            want[at + a] = x[at + a] * c - x[at + b] * s;
            want[at + b] = x[at + b] * c + x[at + a] * s;
        }
    }
    assert_close("rope", &there, &want, 1e-6 + T::ROUNDING);
    assert_close("its inverse", &back, &x, 2e-6 + 3.0 * T::ROUNDING);
}

/// Every kernel of the family.
pub fn check(library: &Library) {
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
