//! The order of rows by their ids.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry;
use oarlock_cuda::order::{ById, n_counts, shifts, tiles};

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::host::{Machine, download, fresh, upload};
use crate::numbers::{indices, padded_by_id};

fn order(library: &Library, ids: &[i32], bound: usize) {
    let n = ids.len();
    let got = in_every_order(library, |gpu| {
        let (ids, counts) = (gpu.buffer(ids), gpu.fresh::<u32>(n_counts(n)));
        let orders = [0; 2].map(|_| gpu.fresh::<i32>(n));
        let (starts, unique) = (gpu.fresh::<i32>(n + 1), gpu.fresh::<i32>(n));
        let (tiles, one) = (tiles(n), geometry::one_block());
        let mut from: Option<&Buffer<i32>> = None;
        for (i, shift) in shifts(bound).enumerate() {
            let to = &orders[i % 2];
            gpu.run("order_count", &[], tiles, args![ids, from, counts, shift, n as u32]);
            gpu.run("order_scan", &[], one, args![counts, 16 * tiles.grid[0]]);
            gpu.run("order_place", &[], tiles, args![ids, from, counts, to, shift, n as u32]);
            from = Some(to);
        }
        gpu.run("group_count", &[], tiles, args![ids, from, counts, n as u32]);
        gpu.run("order_scan", &[], one, args![counts, tiles.grid[0] + 1]);
        gpu.run("group_place", &[], tiles, args![ids, from, counts, starts, unique, n as u32]);
        [from.expect("a pass").read(), starts.read(), unique.read()]
    });
    assert_eq!(got, padded_by_id(ids), "{n} rows with ids below {bound}");
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    order(library, &indices(1, 4200, 700), 700);
    order(library, &indices(2, 77, 300_000), 300_000);
    order(library, &[0; 9], 1);
    order(library, &[5], 6);
    order(library, &[i32::MAX, 0, i32::MAX - 16, 0], 1 << 31);
    // The counts of 33 blocks are 528, which the scan takes in three steps.
    order(library, &indices(3, 32 * 2048 + 1, 16), 16);
}

#[test]
fn orders_match_the_reference() {
    on_emulator(check);
}

#[test]
fn an_order_is_made_on_a_stream() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let (stream, modules) = (context.stream().expect("a stream"), machine.modules(&context));
    let (n, bound) = (300, 5000);
    let rows = indices(4, n, bound);
    let (ids, counts) = (upload(&stream, &rows), fresh::<u32>(&stream, n_counts(n)));
    let orders = [0; 2].map(|_| fresh::<i32>(&stream, n));
    let (starts, unique) = (fresh::<i32>(&stream, n + 1), fresh::<i32>(&stream, n));
    let order = [orders[0].all(), orders[1].all()];
    let by_id = ById {
        ids: ids.all(),
        n,
        bound,
        order,
        counts: counts.all(),
        starts: starts.all(),
        unique: unique.all(),
    };
    // SAFETY: all memory was made for it.
    let done: Slice<'_> = unsafe { by_id.run(&stream, &modules) }.expect("launches");
    let done = orders.iter().find(|memory| memory.address() == done.address()).expect("one of both");
    let got = [done, &starts, &unique].map(|memory| download::<i32>(&stream, memory));
    assert_eq!(got, padded_by_id(&rows));
}
