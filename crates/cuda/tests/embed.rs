//! Token embedding and its gradient against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, by_id, f64s, indices, padded_by_id, values};

fn forward<T: Float, U: Float>(library: &Library, rows: usize, vocab: usize, dim: usize) {
    let (table, ids) = (values::<T>(1, vocab * dim), indices(2, rows, vocab));
    let got = in_every_order(library, |gpu| {
        let (table, ids, y) = (gpu.buffer(&table), gpu.buffer(&ids), gpu.fresh::<U>(rows * dim));
        let args = args![table, ids, y, rows as u32, dim as u32];
        gpu.run("embed_forward", &[T::ELEMENT, U::ELEMENT], geometry::elements(rows * dim), args);
        y.read()
    });
    let want = ids.iter().flat_map(|&id| &table[id as usize * dim..][..dim]).map(|x| U::of(x.f64()));
    assert_eq!(got, want.collect::<Vec<_>>());
}

fn backward<T: Float>(library: &Library, rows: usize, vocab: usize, dim: usize, padded: bool) {
    let (dy, ids, start) =
        (values::<T>(1, rows * dim), indices(2, rows, vocab), values::<f32>(3, vocab * dim));
    let [order, starts, unique] = if padded { padded_by_id(&ids) } else { by_id(&ids) };
    let got = in_every_order(library, |gpu| {
        let (dy, table) = (gpu.buffer(&dy), gpu.buffer(&start));
        let (order, starts, ids) = (gpu.buffer(&order), gpu.buffer(&starts), gpu.buffer(&unique));
        let args = args![dy, order, starts, ids, table, unique.len() as u32, dim as u32];
        gpu.run("embed_backward", &[T::ELEMENT], geometry::elements(unique.len() * dim), args);
        table.read()
    });
    let mut want = f64s(&start);
    for (dy, &id) in f64s(&dy).chunks(dim).zip(&ids) {
        dy.iter().zip(&mut want[id as usize * dim..]).for_each(|(dy, want)| *want += dy);
    }
    assert_close("d_table", &got, &want, 1e-5);
}

fn placed<T: Float>(library: &Library, vocab: usize, dim: usize) {
    // Every other row, the last one first.
    let ids: Vec<i32> = (0..vocab as i32).rev().step_by(2).collect();
    let (x, start) = (values::<f32>(1, ids.len() * dim), values::<T>(2, vocab * dim));
    let got = in_every_order(library, |gpu| {
        let (x, at, y) = (gpu.buffer(&x), gpu.buffer(&ids), gpu.buffer(&start));
        let args = args![x, at, y, ids.len() as u32, dim as u32];
        gpu.run("place_rows", &[T::ELEMENT], geometry::elements(ids.len() * dim), args);
        y.read()
    });
    let mut want = start;
    for (x, &id) in x.chunks(dim).zip(&ids) {
        x.iter().zip(&mut want[id as usize * dim..]).for_each(|(x, to)| *to = T::of(x.f64()));
    }
    assert_eq!(got, want);
}

/// Every kernel of the family, those for f32 first.
pub fn check(library: &Library) {
    placed::<f32>(library, 9, 33);
    backward::<f32>(library, 70, 90, 33, false);
    backward::<f32>(library, 70, 9, 5, true);
    forward::<f32, f32>(library, 9, 5, 33);
    placed::<bf16>(library, 70, 16);
    placed::<f16>(library, 5, 1);
    forward::<bf16, bf16>(library, 9, 50, 64);
    forward::<bf16, f32>(library, 9, 50, 7);
    forward::<f16, f16>(library, 1, 2, 12);
    forward::<f16, f32>(library, 3, 2, 16);
    backward::<bf16>(library, 70, 90, 64, true);
    backward::<f16>(library, 7, 3, 9, false);
}

#[test]
fn embedding_matches_the_reference() {
    on_emulator(check);
}
