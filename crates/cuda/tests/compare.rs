//! Comparisons of two elements, broadcast along some dims.

use half::{bf16, f16};
use oarlock_cuda::functions::Compare;
use oarlock_cuda::{Walk, geometry};

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, Plain, f64s};

fn reference(f: Compare, a: f64, b: f64) -> bool {
    match f {
        Compare::Eq => a == b,
        Compare::Ne => a != b,
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Gt => a > b,
        Compare::Ge => a >= b,
        Compare::And => a != 0.0 && b != 0.0,
        Compare::Or => a != 0.0 || b != 0.0,
        Compare::Xor => (a != 0.0) != (b != 0.0),
    }
}

/// `[4, 3, 5]` of an operand with all dims, and one without the middle one.
fn compare<T: Plain>(library: &Library, f: Compare, x: &[T], y: &[T], of: impl Fn(&[T]) -> Vec<f64>) {
    let walk = Walk::new(&[4, 3, 5], [&[15, 5, 1], &[5, 0, 1]]).expect("a walk");
    let got = in_every_order(library, |gpu| {
        let (x, y, out) = (gpu.buffer(x), gpu.buffer(y), gpu.fresh::<i32>(60));
        gpu.run("compare", &[T::ELEMENT], geometry::elements(60), args![f as u32, walk, x, y, out, 60u64]);
        out.read()
    });
    let (x, y) = (of(x), of(y));
    let want: Vec<i32> = (0..60).map(|i| i32::from(reference(f, x[i], y[i / 15 * 5 + i % 5]))).collect();
    assert_eq!(got, want, "{f:?} of {}", T::ELEMENT);
}

fn floats<T: Float>(library: &Library, f: Compare) {
    // Few different numbers, and 0 of both signs and NaN among them.
    let number = |i: usize| match i % 7 {
        5 => -0.0,
        6 => f64::NAN,
        k => k as f64 - 2.0,
    };
    let (x, y): (Vec<T>, Vec<T>) = (
        (0..60).map(|i| T::of(number(i * i))).collect(),
        (0..20).map(|i| T::of(number(i + i / 7))).collect(),
    );
    compare(library, f, &x, &y, f64s);
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    use Compare::*;
    for f in [Eq, Ne, Lt, Le, Gt, Ge, And, Or, Xor] {
        floats::<f32>(library, f);
    }
    floats::<bf16>(library, Lt);
    floats::<f16>(library, Xor);
    // Neighbors that f32 does not tell apart.
    let (x, y): (Vec<i32>, Vec<i32>) =
        ((0..60).map(|i| (1 << 24) + i % 3).collect(), (0..20).map(|i| (1 << 24) + i % 2).collect());
    compare(library, Ge, &x, &y, |x| x.iter().map(|x| f64::from(*x)).collect());
}

#[test]
fn comparisons_match_the_reference() {
    on_emulator(check);
}
