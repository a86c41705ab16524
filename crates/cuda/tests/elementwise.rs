//! Sums and conversions of elements against f64 references.

use half::{bf16, f16};
use oarlock_cuda::geometry;

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, Plain, assert_close, f64s, values};

fn cast<T: Float, U: Float>(library: &Library, n: usize) {
    let x = values::<T>(1, n);
    let y = in_every_order(library, |gpu| {
        let (x, y) = (gpu.buffer(&x), gpu.fresh::<U>(n));
        gpu.run("cast", &[T::ELEMENT, U::ELEMENT], geometry::elements(n), args![x, y, n as u64]);
        y.read()
    });
    let want: Vec<U> = x.iter().map(|x| U::of(x.f64())).collect();
    assert_eq!(y, want, "a cast rounds to nearest");
}

fn axpy<T: Float, U: Float>(library: &Library, n: usize) {
    let (x, y) = (values::<U>(1, n), values::<T>(2, n));
    let got = in_every_order(library, |gpu| {
        let (x, to) = (gpu.buffer(&x), gpu.buffer(&y));
        gpu.run("axpy", &[T::ELEMENT, U::ELEMENT], geometry::elements(n), args![0.7f32, x, to, n as u64]);
        to.read()
    });
    let want: Vec<f64> = f64s(&y).iter().zip(f64s(&x)).map(|(y, x)| y + 0.7 * x).collect();
    assert_close("axpy", &got, &want, 1e-6 + T::ROUNDING);
}

fn sums<T: Float>(library: &Library, rows: usize, dim: usize) {
    let n = rows * dim;
    let (x, y, bias) = (values::<f32>(1, n), values::<T>(2, n), values::<T>(3, dim));
    let (sum, biased) = in_every_order(library, |gpu| {
        let (x, y, bias, out) = (gpu.buffer(&x), gpu.buffer(&y), gpu.buffer(&bias), gpu.fresh::<f32>(n));
        let grid = geometry::elements(n);
        gpu.run("add_mixed", &[T::ELEMENT], grid, args![x, y, out, n as u64]);
        gpu.run("bias_add", &[T::ELEMENT], grid, args![y, bias, rows as u32, dim as u32]);
        (out.read(), y.read())
    });
    let (y, bias) = (f64s(&y), f64s(&bias));
    let want: Vec<f64> = f64s(&x).iter().zip(&y).map(|(x, y)| x + y).collect();
    assert_close("add_mixed", &sum, &want, 1e-6);
    let want: Vec<f64> = y.iter().enumerate().map(|(i, y)| y + bias[i % dim]).collect();
    assert_close("bias_add", &biased, &want, 1e-6 + T::ROUNDING);
}

fn integers<T: Float>(library: &Library) {
    let floats = [1.9, -1.9, 0.0, f64::NAN, 1e10, -1e10, f64::INFINITY, 300.0].map(T::of);
    let whole = [0, 1, -7, 1234, i32::MAX, i32::MIN];
    let (to, from) = in_every_order(library, |gpu| {
        let (x, y) = (gpu.buffer(&floats), gpu.fresh::<i32>(floats.len()));
        let grid = geometry::elements(8);
        gpu.run("to_integers", &[T::ELEMENT], grid, args![x, y, floats.len() as u64]);
        let (i, z) = (gpu.buffer(&whole), gpu.fresh::<T>(whole.len()));
        gpu.run("from_integers", &[T::ELEMENT], grid, args![i, z, whole.len() as u64]);
        (y.read(), z.read())
    });
    assert_eq!(to, floats.map(|x| x.f64() as i32));
    assert_eq!(from, whole.map(|i| T::of(f64::from(i as f32))));
}

trait Filled: Plain + crate::emulator::IntoArg {}
impl<T: Plain + crate::emulator::IntoArg> Filled for T {}

fn fill<T: Filled>(library: &Library, value: T) {
    let got = in_every_order(library, |gpu| {
        let x = gpu.fresh::<T>(19);
        gpu.run("fill", &[T::ELEMENT], geometry::elements(19), args![x, value, 19u64]);
        x.read()
    });
    assert_eq!(got, [value; 19]);
}

/// Every kernel of the family, some of those for f32 first.
pub fn check(library: &Library) {
    for n in [1, 4100] {
        cast::<f32, bf16>(library, n);
    }
    axpy::<f32, f32>(library, 100);
    axpy::<f32, bf16>(library, 101);
    sums::<f32>(library, 7, 33);
    cast::<f32, f16>(library, 333);
    cast::<bf16, f32>(library, 333);
    cast::<bf16, f16>(library, 64);
    cast::<f16, f32>(library, 333);
    cast::<f16, bf16>(library, 333);
    axpy::<f32, f16>(library, 7);
    axpy::<bf16, bf16>(library, 333);
    axpy::<f16, f16>(library, 333);
    sums::<bf16>(library, 5, 64);
    sums::<f16>(library, 3, 7);
    integers::<f32>(library);
    integers::<bf16>(library);
    integers::<f16>(library);
    fill(library, 1.5f32);
    fill(library, bf16::from_f32(-2.0));
    fill(library, f16::from_f32(0.25));
    fill(library, -7i32);
    let x = [0.5f32, -3.0, 9.0, -0.0];
    let (clamped, capped) = in_every_order(library, |gpu| {
        let (a, b, grid) = (gpu.buffer(&x), gpu.buffer(&x), geometry::elements(4));
        gpu.run("scale_clamp", &[], grid, args![a, 2f32, 4f32, 4u64]);
        gpu.run("soft_cap", &[], grid, args![b, 3f32, 4u64]);
        (a.read(), b.read())
    });
    assert_eq!(clamped, [1.0, -4.0, 4.0, 0.0]);
    assert_close("soft_cap", &capped, &x.map(|x| 3.0 * (f64::from(x) / 3.0).tanh()), 1e-6);
}

#[test]
fn elementwise_kernels_match_the_reference() {
    on_emulator(check);
}
