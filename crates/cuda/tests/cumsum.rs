//! Running sums against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;
use oarlock_reference::reduce::running_sums;

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, Plain, assert_close, f64s, values};

fn run<T: Plain>(library: &Library, x: &[T], [outer, n, inner]: [usize; 3], reverse: bool) -> Vec<T> {
    // A block for each row, or a thread for each column.
    let launch = if inner == 1 { geometry::losses(outer) } else { geometry::elements(outer * inner) };
    in_every_order(library, |gpu| {
        let (x, y) = (gpu.buffer(x), gpu.fresh::<T>(x.len()));
        let args = args![u32::from(reverse), x, y, outer as u32, n as u32, inner as u32];
        gpu.run("cumsum", &[T::ELEMENT], launch, args);
        y.read()
    })
}

fn floats<T: Float>(library: &Library, dims: [usize; 3], reverse: bool) {
    let x = values::<T>(1, dims.iter().product());
    let got = run(library, &x, dims, reverse);
    assert_close(&format!("{dims:?}"), &got, &running_sums(&f64s(&x), dims, reverse), T::ROUNDING.max(1e-7));
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    floats::<f32>(library, [2, 4200, 1], false);
    floats::<f32>(library, [3, 77, 1], true);
    floats::<f32>(library, [2, 7, 5], true);
    floats::<bf16>(library, [2, 9, 1], false);
    floats::<f16>(library, [1, 9, 3], false);
    for dims in [[2, 40, 1], [2, 20, 2]] {
        let x: Vec<i32> = (0..80).map(|i: i32| i.wrapping_mul(0x1357_9bdf) / 2).collect();
        let want = running_sums(&x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), dims, true);
        // Out of their range integers become the nearest one.
        assert_eq!(run(library, &x, dims, true), want.iter().map(|x| *x as i32).collect::<Vec<_>>());
    }
}

#[test]
fn running_sums_match_the_reference() {
    on_emulator(check);
}
