//! Moving elements, against index arithmetic.

use half::{bf16, f16};
use oarlock_cuda::{Walk, geometry};

use crate::emulator::{IntoArg, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, Plain, assert_close, f64s, values};

/// Whether it is the upper one, and the diagonal.
const TRIANGLES: [(bool, i32); 4] = [(false, 0), (false, -2), (true, 1), (true, i32::MIN)];

/// `[4, 3, 5]`, its permutation `[5, 4, 3]`, and the window 1..4 of its last dim.
fn moved<T: Plain + IntoArg>(library: &Library, x: &[T], value: T, zero: T) {
    let walk = Walk::of_one(&[5, 4, 3], &[1, 15, 5]).unwrap();
    let at = |i: usize| i / 12 + i / 3 % 4 * 15 + i % 3 * 5;
    let dtype = [T::ELEMENT];
    let mask: Vec<i32> = (0..60).map(|i| i % 3 - 1).collect();
    let (there, back, window, whole, chosen, constant, turned, triangles) = in_every_order(library, |gpu| {
        let grid = geometry::elements(60);
        let (from, there, back) = (gpu.buffer(x), gpu.fresh::<T>(60), gpu.fresh::<T>(60));
        gpu.run("strided", &dtype, grid, args![walk, from, there, 60u64]);
        gpu.run("write_strided", &dtype, grid, args![walk, there, back, 60u64]);
        let (window, whole) = (gpu.fresh::<T>(36), gpu.buffer(&[value; 60]));
        gpu.run("read_window", &dtype, grid, args![5u32, 1u32, 3u32, from, window, 36u64]);
        gpu.run("write_window", &dtype, grid, args![5u32, 1u32, 3u32, window, whole, 36u64]);
        let (mask, chosen, constant) = (gpu.buffer(&mask), gpu.fresh::<T>(60), gpu.fresh::<T>(60));
        gpu.run("select", &dtype, grid, args![mask, from, Some(&there), value, chosen, 60u64]);
        gpu.run(
            "select",
            &dtype,
            grid,
            args![mask, from, None::<&crate::emulator::Buffer<T>>, value, constant, 60u64],
        );
        let turned = gpu.fresh::<T>(60);
        gpu.run("reversed", &dtype, grid, args![from, turned, 3u32, 5u32, 60u64]);
        let triangles = TRIANGLES.map(|(upper, diagonal)| {
            let out = gpu.fresh::<T>(60);
            let args = args![u32::from(upper), diagonal, from, out, 3u32, 5u32, 60u64];
            gpu.run("triangle", &dtype, grid, args);
            out.read()
        });
        let moved = (there.read(), back.read(), window.read(), whole.read());
        (moved.0, moved.1, moved.2, moved.3, chosen.read(), constant.read(), turned.read(), triangles)
    });
    let all = |f: &dyn Fn(usize) -> T| (0..60).map(f).collect::<Vec<_>>();
    assert_eq!(there, all(&|i| x[at(i)]));
    assert_eq!(back, x);
    assert_eq!(window, (0..36).map(|i| x[i / 3 * 5 + 1 + i % 3]).collect::<Vec<_>>());
    assert_eq!(whole, all(&|i| if (1..4).contains(&(i % 5)) { x[i] } else { value }));
    assert_eq!(chosen, all(&|i| if mask[i] != 0 { x[i] } else { there[i] }));
    assert_eq!(constant, all(&|i| if mask[i] != 0 { x[i] } else { value }));
    assert_eq!(turned, all(&|i| x[i / 15 * 15 + (2 - i / 5 % 3) * 5 + i % 5]));
    for ((upper, diagonal), got) in TRIANGLES.into_iter().zip(triangles) {
        let right = |i: usize| (i % 5) as i32 - (i / 5 % 3) as i32;
        let kept = |i: usize| if upper { right(i) >= diagonal } else { right(i) <= diagonal };
        assert_eq!(got, all(&|i| if kept(i) { x[i] } else { zero }), "{upper}, {diagonal}");
    }
}

fn added<T: Float>(library: &Library) {
    let (x, y) = (values::<T>(1, 60), values::<T>(2, 60));
    let walk = Walk::of_one(&[5, 4, 3], &[1, 15, 5]).unwrap();
    let (strided, window) = in_every_order(library, |gpu| {
        let (x, a, b, grid) = (gpu.buffer(&x), gpu.buffer(&y), gpu.buffer(&y), geometry::elements(60));
        gpu.run("add_strided", &[T::ELEMENT], grid, args![walk, x, a, 60u64]);
        gpu.run("add_window", &[T::ELEMENT], grid, args![5u32, 1u32, 3u32, x, b, 36u64]);
        (a.read(), b.read())
    });
    let (x, mut a) = (f64s(&x), f64s(&y));
    let mut b = a.clone();
    (0..60).for_each(|i| a[i / 12 + i / 3 % 4 * 15 + i % 3 * 5] += x[i]);
    (0..36).for_each(|i| b[i / 3 * 5 + 1 + i % 3] += x[i]);
    assert_close("add_strided", &strided, &a, 1e-6 + T::ROUNDING);
    assert_close("add_window", &window, &b, 1e-6 + T::ROUNDING);
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    moved(library, &values::<f32>(1, 60), 9.0, 0.0);
    moved(library, &values::<bf16>(1, 60), bf16::ONE, bf16::ZERO);
    moved(library, &values::<f16>(1, 60), f16::ONE, f16::ZERO);
    moved(library, &(0..60).collect::<Vec<i32>>(), -1, 0);
    added::<f32>(library);
    added::<bf16>(library);
    added::<f16>(library);
}

#[test]
fn elements_move_where_they_should() {
    on_emulator(check);
}
