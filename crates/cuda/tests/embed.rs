//! Token embedding and its gradient against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;
use oarlock_reference::gather;

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, Number, assert_close, by_id, f64s, indices, padded_by_id, values};

fn forward<T: Float, U: Float>(library: &Library, rows: usize, vocab: usize, dim: usize) {
    let (table, ids) = (values::<T>(1, vocab * dim), indices(2, rows, vocab));
    let got = in_every_order(library, |gpu| {
        let (table, ids, y) = (gpu.buffer(&table), gpu.buffer(&ids), gpu.fresh::<U>(rows * dim));
        let args = args![table, ids, y, rows as u32, dim as u32];
        gpu.run("embed_forward", &[T::ELEMENT, U::ELEMENT], geometry::elements(rows * dim), args);
        y.read()
    });
    assert_eq!(got, gather::rows(&table, dim, &ids).iter().map(|x| U::of(x.f64())).collect::<Vec<_>>());
}

fn backward<T: Float>(library: &Library, rows: usize, vocab: usize, dim: usize, padded: bool) {
    backward_of::<T>(library, &indices(2, rows, vocab), vocab, dim, padded);
}

fn backward_of<T: Float>(library: &Library, ids: &[i32], vocab: usize, dim: usize, padded: bool) {
    let rows = ids.len();
    let (dy, start) = (values::<T>(1, rows * dim), values::<f32>(3, vocab * dim));
    // Runs are searched among as many entries as there are rows, as order.cu leaves them.
    let [order, starts, unique] =
        if padded || rows >= geometry::EMBED_RUN { padded_by_id(ids) } else { by_id(ids) };
    let got = in_every_order(library, |gpu| {
        let (dy, table) = (gpu.buffer(&dy), gpu.buffer(&start));
        let (order, starts, ids) = (gpu.buffer(&order), gpu.buffer(&starts), gpu.buffer(&unique));
        // What is not written is not read: it is NaN.
        let runs = gpu.fresh::<f32>(rows / geometry::EMBED_RUN * dim);
        let args = args![dy, order, starts, runs, rows as u32, dim as u32];
        if rows >= geometry::EMBED_RUN {
            gpu.run("embed_runs", &[T::ELEMENT], geometry::embed_runs(rows, dim), args);
        }
        let args = args![dy, order, starts, ids, runs, table, unique.len() as u32, dim as u32];
        gpu.run("embed_backward", &[T::ELEMENT], geometry::elements(unique.len() * dim), args);
        table.read()
    });
    let mut want = f64s(&start);
    gather::add_rows(&mut want, dim, ids, &dy);
    assert_close("d_table", &got, &want, 1e-5);
}

/// Tokens with as many rows as make a run or several, with and without a rest, beginning anywhere in the order.
fn frequent(library: &Library) {
    for counts in
        [&[33][..], &[5, 32, 64, 1, 65, 31, 96], &[64, 64], &[20, 33, 33], &[31, 34, 2, 300], &[97, 3, 33]]
    {
        let ids: Vec<i32> = counts.iter().enumerate().flat_map(|(id, &n)| vec![2 * id as i32; n]).collect();
        // In no order.
        let n = ids.len();
        let step = (0..)
            .map(|k| 2 * k + 37)
            .find(|step| (2..=*step).all(|d| step % d > 0 || !n.is_multiple_of(d)))
            .unwrap();
        let shuffled: Vec<i32> = (0..n).map(|i| ids[i * step % n]).collect();
        backward_of::<f32>(library, &shuffled, 2 * counts.len(), 9, counts.len() > 2);
    }
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
    frequent(library);
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
