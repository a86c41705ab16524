//! Functions of two elements, broadcast along some dims.

use half::{bf16, f16};
use oarlock_cuda::functions::Binary;
use oarlock_cuda::{Walk, geometry};

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, values};

fn reference(f: Binary, a: f64, b: f64) -> f64 {
    let share = |chosen: bool| if a == b { 0.5 } else { f64::from(u8::from(chosen)) };
    match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::FloorDivide => (a / b).floor(),
        Binary::Remainder => a - b * (a / b).floor(),
        Binary::Maximum => a.max(b),
        Binary::Minimum => a.min(b),
        Binary::Pow => a.powf(b),
        Binary::MaximumSlope => share(a > b),
        Binary::MinimumSlope => share(a < b),
        Binary::PowSlope => b * a.powf(b - 1.0),
        Binary::PowExponentSlope => a.powf(b) * a.ln(),
    }
}

/// `[4, 3, 5]` of an operand with all dims, and one without the middle one.
fn binary<T: Float>(library: &Library, f: Binary) {
    let x: Vec<T> = values::<T>(1, 60).iter().map(|x| T::of(x.f64() + 2.25)).collect();
    let y: Vec<T> = values::<T>(2, 20)
        .iter()
        .map(|y| T::of(if y.f64() < 0.0 { y.f64() - 0.3 } else { y.f64() + 0.3 }))
        .collect();
    let walk = Walk::new(&[4, 3, 5], [&[15, 5, 1], &[5, 0, 1]]).unwrap();
    let got = in_every_order(library, |gpu| {
        let (x, y, out) = (gpu.buffer(&x), gpu.buffer(&y), gpu.fresh::<T>(60));
        gpu.run("binary", &[T::ELEMENT], geometry::elements(60), args![f as u32, walk, x, y, out, 60u64]);
        out.read()
    });
    let (x, y) = (f64s(&x), f64s(&y));
    let want: Vec<f64> = (0..60).map(|i| reference(f, x[i], y[i / 15 * 5 + i % 5])).collect();
    assert_close(&format!("{f:?}"), &got, &want, 1e-5 + T::ROUNDING);
}

/// Integers wrap around.
fn binary_ints(library: &Library, f: Binary, reference: fn(i32, i32) -> i32) {
    let number = |i: usize| (i as i32).wrapping_mul(0x2545_f491);
    let (x, y): (Vec<i32>, Vec<i32>) = ((0..60).map(number).collect(), (7..27).map(number).collect());
    let walk = Walk::new(&[4, 3, 5], [&[15, 5, 1], &[5, 0, 1]]).unwrap();
    let got = in_every_order(library, |gpu| {
        let (x, y, out) = (gpu.buffer(&x), gpu.buffer(&y), gpu.fresh::<i32>(60));
        gpu.run("binary_ints", &[], geometry::elements(60), args![f as u32, walk, x, y, out, 60u64]);
        out.read()
    });
    assert_eq!(got, (0..60).map(|i| reference(x[i], y[i / 15 * 5 + i % 5])).collect::<Vec<_>>(), "{f:?}");
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    use Binary::*;
    let all = [
        Add,
        Sub,
        Mul,
        Div,
        FloorDivide,
        Remainder,
        Maximum,
        Minimum,
        Pow,
        MaximumSlope,
        MinimumSlope,
        PowSlope,
        PowExponentSlope,
    ];
    for f in all {
        binary::<f32>(library, f);
    }
    binary_ints(library, Add, i32::wrapping_add);
    binary_ints(library, Sub, i32::wrapping_sub);
    binary_ints(library, Mul, i32::wrapping_mul);
    binary_ints(library, Maximum, i32::max);
    binary_ints(library, Minimum, i32::min);
    binary::<bf16>(library, Mul);
    binary::<f16>(library, Sub);
}

#[test]
fn functions_of_two_match_the_reference() {
    on_emulator(check);
}
