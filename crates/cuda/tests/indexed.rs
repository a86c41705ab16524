//! Elements and rows by their index against loops.

use half::{bf16, f16};
use oarlock_cuda::{Walk, geometry};

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, Plain, assert_close, by_id, f64s, indices, padded_by_id, values};

fn moved<T: Plain>(
    library: &Library,
    [outer, n, n_ids, inner]: [usize; 4],
    zero: T,
    of: impl Fn(usize) -> T,
) {
    let x: Vec<T> = (0..outer * n * inner).map(&of).collect();
    let before: Vec<T> = (0..n * inner).map(|i| of(i + 1000)).collect();
    let ids = indices(1, n_ids, n);
    let [order, starts, unique] = padded_by_id(&ids);
    let source: Vec<T> = (0..n_ids * inner).map(|i| of(i + 17)).collect();
    // Along the middle dim of [outer, n, inner], an index for each of [outer, 3, inner].
    let along = indices(2, outer * 3 * inner, n);
    let walk = Walk::of_one(&[outer, 3, inner], &[n * inner, 0, 1]).expect("a walk");
    // No two of these places are the same.
    let distinct: Vec<i32> = (0..outer * inner).map(|i| (i * 5 % n) as i32).collect();
    let apart = Walk::of_one(&[outer, inner], &[n * inner, 1]).expect("a walk");
    let dy: Vec<T> = (0..n * inner).map(|i| of(i + 300)).collect();
    let x_before: Vec<T> = (0..outer * n * inner).map(|i| of(i + 77)).collect();
    let (selected, gathered, written, places, put, taken) = in_every_order(library, |gpu| {
        let (x, ids, y) = (gpu.buffer(&x), gpu.buffer(&ids), gpu.fresh::<T>(outer * n_ids * inner));
        let [wide, full, count, dim] = [outer, n, n_ids, inner].map(|x| x as u32);
        let args = args![x, ids, y, wide, full, count, dim];
        gpu.run("select_rows", &[T::ELEMENT], geometry::elements(outer * n_ids * inner), args);
        let (on_gpu, gathered) = (gpu.buffer(&along), gpu.fresh::<T>(along.len()));
        let launch = geometry::elements(along.len());
        let args = args![walk, on_gpu, x, gathered, dim, along.len() as u64];
        gpu.run("gather", &[T::ELEMENT], launch, args);
        let places = gpu.fresh::<i32>(along.len());
        gpu.run("places", &[], launch, args![walk, on_gpu, places, dim, along.len() as u64]);
        let (order, starts, unique) = (gpu.buffer(&order), gpu.buffer(&starts), gpu.buffer(&unique));
        let (source, written) = (gpu.buffer(&source), gpu.buffer(&before));
        let args = args![source, order, starts, unique, written, count, dim];
        gpu.run("write_rows", &[T::ELEMENT], geometry::elements(n_ids * inner), args);
        let (distinct, put) = (gpu.buffer(&distinct), gpu.buffer(&x_before));
        let (launch, count_of_rows) = (geometry::elements(outer * inner), (outer * inner) as u64);
        let args = args![apart, distinct, x, 1u32, put, dim, count_of_rows];
        gpu.run("write_places", &[T::ELEMENT], launch, args);
        let same = gpu.buffer(&x_before);
        let args = args![apart, distinct, source, 0u32, same, dim, count_of_rows];
        gpu.run("write_places", &[T::ELEMENT], launch, args);
        let put = [put.read(), same.read()];
        let (dx, d_source) = (gpu.buffer(&dy), gpu.fresh::<T>(n_ids));
        let args = args![dx, order, starts, unique, d_source, count];
        gpu.run("take_rows", &[T::ELEMENT], geometry::elements(n_ids), args);
        (y.read(), gathered.read(), written.read(), places.read(), put, (dx.read(), d_source.read()))
    });
    let rows = (0..outer).flat_map(|o| ids.iter().map(move |&id| o * n + id as usize));
    let want: Vec<T> = rows.flat_map(|row| x[row * inner..][..inner].to_vec()).collect();
    assert_eq!(selected, want, "select");
    let place = |p: usize| (p / (3 * inner) * n + along[p] as usize) * inner + p % inner;
    assert_eq!(places, (0..along.len()).map(|p| place(p) as i32).collect::<Vec<_>>());
    assert_eq!(gathered, (0..along.len()).map(|p| x[place(p)]).collect::<Vec<_>>(), "gather");
    let mut want = before.clone();
    for (row, &id) in source.chunks(inner).zip(&ids) {
        want[id as usize * inner..][..inner].copy_from_slice(row);
    }
    assert_eq!(written, want, "write");
    for (put, step) in put.iter().zip([1, 0]) {
        let (mut want, from) = (x_before.clone(), if step == 1 { &x } else { &source });
        for (i, &id) in distinct.iter().enumerate() {
            want[(i / inner * n + id as usize) * inner + i % inner] = from[i * step];
        }
        assert_eq!(*put, want, "write_places, {step}");
    }
    let (mut dx, mut d_source) = (dy, vec![zero; n_ids]);
    for (d_source, &id) in d_source.iter_mut().zip(&ids).rev() {
        *d_source = std::mem::replace(&mut dx[id as usize], zero);
    }
    assert_eq!(taken, (dx, d_source), "take_rows");
}

fn added<T: Float>(library: &Library, [outer, n, n_rows, inner]: [usize; 4], padded: bool) {
    let ids = indices(1, n_rows, n);
    let [order, starts, unique] = if padded { padded_by_id(&ids) } else { by_id(&ids) };
    let (x, before) = (values::<T>(1, outer * n_rows * inner), values::<f32>(2, outer * n * inner));
    let got = in_every_order(library, |gpu| {
        let (x, y) = (gpu.buffer(&x), gpu.buffer(&before));
        let [wide, full, rows, n_ids, dim] = [outer, n, n_rows, unique.len(), inner].map(|x| x as u32);
        let (order, starts, unique) = (gpu.buffer(&order), gpu.buffer(&starts), gpu.buffer(&unique));
        let args = args![x, order, starts, unique, y, wide, full, rows, n_ids, dim];
        gpu.run("add_rows", &[T::ELEMENT], geometry::elements(outer * n_ids as usize * inner), args);
        y.read()
    });
    let mut want = f64s(&before);
    for (i, x) in f64s(&x).chunks(inner).enumerate() {
        let to = &mut want[(i / n_rows * n + ids[i % n_rows] as usize) * inner..];
        x.iter().zip(to).for_each(|(x, to)| *to += x);
    }
    assert_close("added", &got, &want, 1e-5);
}

/// Integers wrap around.
fn added_ints(library: &Library, [outer, n, n_rows, inner]: [usize; 4]) {
    let ids = indices(1, n_rows, n);
    let [order, starts, unique] = padded_by_id(&ids);
    let x: Vec<i32> = (0..outer * n_rows * inner).map(|i| (i as i32).wrapping_mul(0x2545_f491)).collect();
    let before: Vec<i32> = (0..outer * n * inner).map(|i| i as i32 - 9).collect();
    let got = in_every_order(library, |gpu| {
        let (x, y) = (gpu.buffer(&x), gpu.buffer(&before));
        let [wide, full, rows, n_ids, dim] = [outer, n, n_rows, unique.len(), inner].map(|x| x as u32);
        let (order, starts, unique) = (gpu.buffer(&order), gpu.buffer(&starts), gpu.buffer(&unique));
        let args = args![x, order, starts, unique, y, wide, full, rows, n_ids, dim];
        gpu.run("add_rows_ints", &[], geometry::elements(outer * n_ids as usize * inner), args);
        y.read()
    });
    let mut want = before;
    for (i, x) in x.chunks(inner).enumerate() {
        let to = &mut want[(i / n_rows * n + ids[i % n_rows] as usize) * inner..];
        x.iter().zip(to).for_each(|(x, to)| *to = to.wrapping_add(*x));
    }
    assert_eq!(got, want);
}

fn outside(library: &Library, ids: &[i32], bound: u32, want: usize) {
    let got = in_every_order(library, |gpu| {
        let (grid, n) = (geometry::elements(ids.len()), ids.len() as u32);
        let (ids, positions) = (gpu.buffer(ids), gpu.fresh::<u32>(grid.grid[0] as usize));
        gpu.run("first_outside", &[], grid, args![ids, bound, positions, n]);
        positions.read()
    });
    assert_eq!(got.into_iter().min(), Some(want as u32));
}

/// Labels of which `ignored` has no loss, whether or not it is below the bound.
fn targets(library: &Library, labels: &[i32], ignored: i32, bound: u32, want: usize) {
    let (out, positions) = in_every_order(library, |gpu| {
        let (grid, n) = (geometry::elements(labels.len()), labels.len());
        let (labels, out) = (gpu.buffer(labels), gpu.fresh::<i32>(n));
        let positions = gpu.fresh::<u32>(grid.grid[0] as usize);
        gpu.run("targets", &[], grid, args![labels, ignored, -100, bound, out, positions, n as u32]);
        (out.read(), positions.read())
    });
    let marked = labels.iter().map(|&label| if label == ignored { -100 } else { label });
    assert_eq!(out, marked.collect::<Vec<_>>());
    assert_eq!(positions.into_iter().min(), Some(want as u32));
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    moved(library, [2, 7, 20, 9], 0.0, |i| i as f32);
    moved(library, [1, 30, 5, 16], 0.0, |i| i as f32);
    added::<f32>(library, [2, 7, 40, 9], true);
    added::<f32>(library, [1, 30, 50, 1], false);
    outside(library, &(0..300).map(|i| i % 260).collect::<Vec<_>>(), 259, 259);
    outside(library, &[3, 0, -1, 9], 4, 2);
    outside(library, &[3, 0, 3], 4, 3);
    // More than one block, and more than one wrong index.
    outside(library, &(0..5000).map(|i| i % 4100).collect::<Vec<_>>(), 4098, 4098);
    targets(library, &[3, 5, -1, 0, 5], 5, 4, 2);
    targets(library, &[3, -1, 0, 2], -1, 4, 4);
    targets(library, &(0..2300).map(|i| i % 7).collect::<Vec<_>>(), 3, 6, 6);
    added_ints(library, [2, 5, 40, 3]);
    moved(library, [1, 3, 9, 8], bf16::ZERO, |i| bf16::from_f32((i % 256) as f32));
    moved(library, [3, 4, 2, 1], f16::ZERO, |i| f16::from_f32((i % 2048) as f32));
    moved(library, [1, 6, 4, 3], 0, |i| i as i32);
    added::<bf16>(library, [1, 5, 9, 8], true);
    added::<f16>(library, [2, 3, 4, 3], false);
}

#[test]
fn places_match_the_reference() {
    on_emulator(check);
}
