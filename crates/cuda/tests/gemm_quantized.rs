//! Products with quantized weights against f64.

use half::{bf16, f16};
use oarlock_cuda::gemm::GemmShape;

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, values};

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

fn four_bits<T: Float>(library: &Library, m: usize, size: [usize; 2], forward: bool, nested: bool) {
    let [rows, cols] = size;
    let (n_elems, n_blocks) = (rows * cols, (rows * cols).div_ceil(64));
    // Codes end at whole words, as the parts of a weight do.
    let codes: Vec<u8> = (0..n_elems.div_ceil(8) * 4).map(|i| (i * 37 + i / 7) as u8).collect();
    let table = values::<f32>(4, 16);
    let scale_codes: Vec<u8> = (0..n_blocks).map(|i| (i * 91) as u8).collect();
    let (map, offset) = (values::<f32>(5, 256), [0.3f32]);
    let absmax = values::<f32>(6, if nested { n_blocks.div_ceil(256) } else { n_blocks });
    let element = |at: usize| {
        let block = at / 64;
        let scale = match nested {
            true => map[usize::from(scale_codes[block])] * absmax[block / 256] + offset[0],
            false => absmax[block],
        };
        let code = if at.is_multiple_of(2) { codes[at / 2] >> 4 } else { codes[at / 2] & 15 };
        T::of(f64::from(table[usize::from(code)] * scale))
    };
    let weight: Vec<T> = (0..n_elems).map(element).collect();
    let shape = GemmShape::quantized(m, size, forward);
    let op = if forward { "product_4bit_forward" } else { "product_4bit_backward" };
    compare(op, (m, size, forward), &weight, nested, |x, bias, before, beta| {
        in_every_order(library, |gpu| {
            let (x, y, bias) = (gpu.buffer(x), gpu.buffer(before), gpu.buffer(bias));
            let (codes, table, absmax) = (gpu.buffer(&codes), gpu.buffer(&table), gpu.buffer(&absmax));
            let (scales, map) = (gpu.buffer(&scale_codes), gpu.buffer(&map));
            let scales: Option<&Buffer<u8>> = nested.then_some(&scales);
            let (map, offset): (Option<&Buffer<f32>>, _) = (nested.then_some(&map), gpu.buffer(&offset));
            let offset = nested.then_some(&offset);
            let bias: Option<&Buffer<T>> = nested.then_some(&bias);
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
    let codes: Vec<i8> = (0..rows * cols).map(|i| (i * 37 + i / 7) as i8).collect();
    let absmax = values::<f32>(4, rows);
    let element = |i: usize| f32::from(codes[i]) * (absmax[i / cols] * (1.0 / 127.0));
    let weight: Vec<T> = (0..rows * cols).map(|i| T::of(f64::from(element(i)))).collect();
    let shape = GemmShape::quantized(m, size, forward);
    let op = if forward { "product_int8_forward" } else { "product_int8_backward" };
    compare(op, (m, size, forward), &weight, forward, |x, bias, before, beta| {
        in_every_order(library, |gpu| {
            let (x, y, bias) = (gpu.buffer(x), gpu.buffer(before), gpu.buffer(bias));
            let (codes, absmax) = (gpu.buffer(&codes), gpu.buffer(&absmax));
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
