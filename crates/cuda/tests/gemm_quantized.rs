//! Products with quantized weights against f64.

use half::{bf16, f16};
use oarlock_cuda::gemm::GemmShape;
use oarlock_reference::quantized::{FourBit, Int8};

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, values};
use crate::quantized::nested;

/// Compares `y = x Wᵀ` or `x W`, and what was added to it, with the product of the rounded elements of the weight.
fn compare<T: Float>(
    what: &str,
    (m, [rows, cols], forward): (usize, [usize; 2], bool),
    weight: &[T],
    with_bias: bool,
    run: impl Fn(&[T], &[T], &[T], f32) -> Vec<T>,
) {
    let (n, k) = if forward { (rows, cols) } else { (cols, rows) };
    let (x, bias, before) = (values::<T>(1, m * k), values::<T>(2, n), values::<T>(3, m * n));
    let got = run(&x, &bias, &before, 2.0);
    let (x, w) = (f64s(&x), f64s(weight));
    let element = |i: usize| {
        let (row, col) = (i / n, i % n);
        let at = |k: usize| if forward { col * cols + k } else { k * cols + col };
        let sum: f64 = (0..k).map(|k1| x[row * k + k1] * w[at(k1)]).sum();
        sum + 2.0 * before[i].f64() + if with_bias { bias[col].f64() } else { 0.0 }
    };
    let want: Vec<f64> = (0..m * n).map(element).collect();
    let what = format!("{what} of {}, [{m}, {k}] x [{k}, {n}]", T::ELEMENT);
    assert_close(&what, &got, &want, T::ROUNDING.max(2e-6));
}

fn four_bits<T: Float>(library: &Library, m: usize, size: [usize; 2], forward: bool, is_nested: bool) {
    let [rows, cols] = size;
    let w = FourBit::new(rows * cols, is_nested);
    let weight: Vec<T> = (0..rows * cols).map(|at| T::of(f64::from(w.element(at)))).collect();
    let shape = GemmShape::quantized(m, size, forward);
    let op = if forward { "product_4bit_forward" } else { "product_4bit_backward" };
    compare(op, (m, size, forward), &weight, is_nested, |x, bias, before, beta| {
        in_every_order(library, |gpu| {
            let (x, y, bias) = (gpu.buffer(x), gpu.buffer(before), gpu.buffer(bias));
            let (codes, table, absmax) = (gpu.buffer(&w.codes), gpu.buffer(&w.table), gpu.buffer(&w.absmax));
            let (scales, map, offset) = nested(gpu, &w);
            let (scales, map, offset) = (scales.as_ref(), map.as_ref(), offset.as_ref());
            let bias: Option<&Buffer<T>> = is_nested.then_some(&bias);
            let (k, n) = (shape.k as u64, shape.n as u64);
            let [m, rows, cols] = [m, rows, cols].map(|x| x as u32);
            let args =
                args![x, k, codes, table, absmax, scales, map, offset, bias, y, n, beta, m, rows, cols];
            gpu.run(op, &[T::ELEMENT], shape.geometry(T::ELEMENT), args);
            y.read()
        })
    });
}

fn eight_bits<T: Float>(library: &Library, m: usize, size: [usize; 2], forward: bool) {
    let [rows, cols] = size;
    let w = Int8::new(rows, cols);
    let weight: Vec<T> = (0..rows * cols).map(|at| T::of(f64::from(w.element(at)))).collect();
    let shape = GemmShape::quantized(m, size, forward);
    let op = if forward { "product_int8_forward" } else { "product_int8_backward" };
    compare(op, (m, size, forward), &weight, forward, |x, bias, before, beta| {
        in_every_order(library, |gpu| {
            let (x, y, bias) = (gpu.buffer(x), gpu.buffer(before), gpu.buffer(bias));
            let (codes, absmax) = (gpu.buffer(&w.codes), gpu.buffer(&w.absmax));
            let bias: Option<&Buffer<T>> = forward.then_some(&bias);
            let (k, n) = (shape.k as u64, shape.n as u64);
            let [m, rows, cols] = [m, rows, cols].map(|x| x as u32);
            let args = args![x, k, codes, absmax, bias, y, n, beta, m, rows, cols];
            gpu.run(op, &[T::ELEMENT], shape.geometry(T::ELEMENT), args);
            y.read()
        })
    });
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    for forward in [true, false] {
        // Weights with more than 256 blocks; whole packs of codes, and rows that begin inside of a byte.
        four_bits::<bf16>(library, 9, [136, 152], forward, true);
        four_bits::<f32>(library, 5, [37, 51], forward, false);
        four_bits::<f32>(library, 3, [40, 72], forward, true);
        four_bits::<f16>(library, 130, [35, 43], forward, false);
        eight_bits::<bf16>(library, 9, [136, 136], forward);
        eight_bits::<f32>(library, 5, [37, 51], forward);
        eight_bits::<f32>(library, 5, [35, 40], forward);
        eight_bits::<f16>(library, 3, [33, 45], forward);
    }
}

#[test]
fn products_match_the_reference() {
    on_emulator(check);
}
