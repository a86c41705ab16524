//! Sorting along a dim, by the order of keys and of rows.

use half::{bf16, f16};
use oarlock_cuda::geometry;
use oarlock_cuda::order::{ByKey, n_counts, shifts, tiles};
use oarlock_reference::sort::places as places_of;

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::host::{Machine, download, fresh, upload};
use crate::numbers::{Float, Plain};

fn sort<T: Plain>(
    library: &Library,
    x: &[T],
    of: impl Fn(&T) -> f64,
    [outer, n, inner]: [usize; 3],
    k: usize,
    descending: bool,
) {
    let n_elems = x.len();
    let places = in_every_order(library, |gpu| {
        let (x, grid, tiles) = (gpu.buffer(x), geometry::elements(n_elems), tiles(n_elems));
        let (keys, rows) = (gpu.fresh::<i32>(n_elems), gpu.fresh::<i32>(n_elems));
        let [count, dim, width, first] = [n_elems, n, inner, k].map(|x| x as u32);
        gpu.run("sort_keys", &[T::ELEMENT], grid, args![u32::from(descending), x, keys, n_elems as u64]);
        gpu.run("sort_rows", &[], grid, args![rows, dim, width, n_elems as u64]);
        let counts = gpu.fresh::<u32>(n_counts(n_elems));
        let orders = [0; 2].map(|_| gpu.fresh::<i32>(n_elems));
        let mut from: Option<&Buffer<i32>> = None;
        let by_keys = (0..32).step_by(4).map(|shift| (&keys, shift));
        let passes = by_keys.chain(shifts(outer * inner).map(|shift| (&rows, shift)));
        for (i, (ids, shift)) in passes.enumerate() {
            let to = &orders[i % 2];
            gpu.run("order_count", &[], tiles, args![ids, from, counts, shift, count]);
            gpu.run("order_scan", &[], geometry::one_block(), args![counts, 16 * tiles.grid[0]]);
            gpu.run("order_place", &[], tiles, args![ids, from, counts, to, shift, count]);
            from = Some(to);
        }
        let (order, places) = (from.expect("a pass"), gpu.fresh::<i32>(outer * k * inner));
        let args = args![order, places, dim, first, width, (outer * k * inner) as u64];
        gpu.run("sort_places", &[], geometry::elements(outer * k * inner), args);
        places.read()
    });
    let want = places_of(&x.iter().map(of).collect::<Vec<_>>(), [outer, n, inner], k, descending);
    assert_eq!(
        places,
        want.into_iter().map(|i| i as i32).collect::<Vec<_>>(),
        "{k} of [{outer}, {n}, {inner}]"
    );
}

/// NaN is the largest, and -0 is 0.
fn floats<T: Float>(library: &Library, sizes: [usize; 3], k: usize, descending: bool) {
    let number = |i: usize| match i * i % 101 {
        50 => f64::NAN,
        51 => f64::INFINITY,
        52 => -0.0,
        m => (m % 23) as f64 - 11.0,
    };
    let x: Vec<T> = (0..sizes.iter().product()).map(|i| T::of(number(i))).collect();
    sort(library, &x, |x| x.f64(), sizes, k, descending);
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    floats::<f32>(library, [3, 37, 5], 37, true);
    floats::<f32>(library, [2, 9, 1], 2, false);
    floats::<bf16>(library, [1, 70, 1], 70, false);
    floats::<f16>(library, [1, 8, 20], 3, true);
    let ints: Vec<i32> = (0..66).map(|i: i32| i.wrapping_mul(0x1357_9bdf) | 1 << 24).collect();
    sort(library, &ints, |x| f64::from(*x), [3, 22, 1], 22, false);
    sort(library, &ints, |x| f64::from(*x), [1, 11, 6], 4, true);
}

#[test]
fn orders_match_the_reference() {
    on_emulator(check);
}

#[test]
fn elements_are_sorted_on_a_stream() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let (stream, modules) = (context.stream().expect("a stream"), machine.modules(&context));
    for n_rows in [1, 3, 40] {
        let n = 120;
        // Keys with all bits, the upper one as well; some are equal.
        let keys: Vec<u32> = (0..n as u32).map(|i| (i % 50).wrapping_mul(0x9e37_79b9)).collect();
        let rows: Vec<i32> = (0..n).map(|i| (i * 7 % n_rows) as i32).collect();
        let (on_gpu, of_rows) = (upload(&stream, &keys), upload(&stream, &rows));
        let counts = fresh::<u32>(&stream, n_counts(n));
        let orders = [0; 2].map(|_| fresh::<i32>(&stream, n));
        let by_key = ByKey {
            keys: on_gpu.all(),
            rows: of_rows.all(),
            n,
            n_rows,
            order: [orders[0].all(), orders[1].all()],
            counts: counts.all(),
        };
        // SAFETY: all memory was made for it.
        let done = unsafe { by_key.run(&stream, &modules) }.expect("launches");
        let done = orders.iter().find(|memory| memory.address() == done.address()).expect("one of both");
        let mut want: Vec<i32> = (0..n as i32).collect();
        want.sort_by_key(|&i| (rows[i as usize], keys[i as usize]));
        assert_eq!(download::<i32>(&stream, done), want, "{n_rows} rows");
    }
}
