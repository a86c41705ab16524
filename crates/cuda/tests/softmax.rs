//! Softmax and its logarithm against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;
use oarlock_reference::softmax::{Case, Results, SHAPES};

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::Float;

fn softmax<T: Float>(library: &Library, rows: usize, dim: usize) {
    let c = Case::<T>::new(rows, dim);
    let (r, d, grid, dtype) = (rows as u32, dim as u32, geometry::rows(rows, dim), [T::ELEMENT]);
    let got = in_every_order(library, |gpu| -> Results<T> {
        let [[y, dx, added], [log_y, log_dx, log_added]] = ["softmax", "log_softmax"].map(|op| {
            let (x, y, dy) = (gpu.buffer(&c.x), gpu.fresh::<T>(rows * dim), gpu.buffer(&c.dy));
            gpu.run(&format!("{op}_forward"), &dtype, grid, args![x, y, r, d]);
            let [dx, added] = [(gpu.fresh(rows * dim), 0u32), (gpu.buffer(&c.start), 1)].map(|(dx, add)| {
                gpu.run(&format!("{op}_backward"), &dtype, grid, args![y, dy, dx, add, r, d]);
                dx.read()
            });
            [y.read(), dx, added]
        });
        [y, dx, added, log_y, log_dx, log_added]
    });
    c.check(&got);
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    for (rows, dim) in SHAPES {
        softmax::<f32>(library, rows, dim);
    }
    softmax::<bf16>(library, 3, 64);
    softmax::<f16>(library, 3, 70);
}

#[test]
fn softmax_matches_the_reference() {
    on_emulator(check);
}
