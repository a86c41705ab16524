//! The first elements of rows by their order.

use half::{bf16, f16};
use oarlock_cuda::geometry;
use oarlock_reference::sort::places as places_of;

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, Plain};

fn top_k<T: Plain>(
    library: &Library,
    x: &[T],
    rows: usize,
    k: usize,
    descending: bool,
    of: impl Fn(&T) -> f64,
) {
    let n = x.len() / rows;
    let (values, places) = in_every_order(library, |gpu| {
        let (x, values, places) = (gpu.buffer(x), gpu.fresh::<T>(rows * k), gpu.fresh::<i32>(rows * k));
        let args = args![u32::from(descending), x, values, places, rows as u32, n as u32, k as u32];
        gpu.run("top_k", &[T::ELEMENT], geometry::rows(rows, n), args);
        (values.read().iter().map(|v| format!("{v:?}")).collect::<Vec<_>>(), places.read())
    });
    let want = places_of(&x.iter().map(of).collect::<Vec<_>>(), [rows, n, 1], k, descending);
    assert_eq!(places, want.iter().map(|&i| i as i32).collect::<Vec<_>>(), "{k} of {n}");
    let elements = want.iter().enumerate().map(|(i, &place)| format!("{:?}", x[i / k * n + place]));
    assert_eq!(values, elements.collect::<Vec<_>>());
}

fn floats<T: Float>(library: &Library, rows: usize, n: usize, k: usize, descending: bool) {
    let number = |i: usize| match i * i % 101 {
        50 => f64::NAN,
        51 => f64::INFINITY,
        52 => -0.0,
        m => (m % 23) as f64 - 11.0,
    };
    let x: Vec<T> = (0..rows * n).map(|i| T::of(number(i))).collect();
    top_k(library, &x, rows, k, descending, |x| x.f64());
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    floats::<f32>(library, 9, 37, 37, true);
    floats::<f32>(library, 2, 1030, 5, false);
    floats::<bf16>(library, 3, 8, 2, true);
    floats::<f16>(library, 1, 1200, 3, true);
    let x: Vec<i32> = (0..66).map(|i: i32| i.wrapping_mul(0x1357_9bdf) | 1 << 24).collect();
    top_k(library, &x, 2, 7, true, |x| f64::from(*x));
    top_k(library, &x, 3, 22, false, |x| f64::from(*x));
}

#[test]
fn the_first_elements_match_the_reference() {
    on_emulator(check);
}
