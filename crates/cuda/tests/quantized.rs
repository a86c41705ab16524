//! Quantized weights: values times scales, to the bit.

use half::{bf16, f16};
use oarlock_cuda::geometry;

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, values};

fn four_bits<T: Float>(library: &Library, first: usize, n: usize, nested: bool) {
    let n_blocks = (first + n).div_ceil(64);
    let codes: Vec<u8> = (0..(first + n).div_ceil(2)).map(|i| (i * 37 + 11) as u8).collect();
    let table = values::<f32>(1, 16);
    let scale_codes: Vec<u8> = (0..n_blocks).map(|i| (i * 91) as u8).collect();
    let (map, offset) = (values::<f32>(2, 256), [0.3f32]);
    let absmax = values::<f32>(3, if nested { n_blocks.div_ceil(256) } else { n_blocks });
    let got = in_every_order(library, |gpu| {
        let (codes, table, absmax) = (gpu.buffer(&codes), gpu.buffer(&table), gpu.buffer(&absmax));
        let (scales, map, out) = (gpu.buffer(&scale_codes), gpu.buffer(&map), gpu.fresh::<T>(n));
        let scales: Option<&Buffer<u8>> = nested.then_some(&scales);
        let (map, offset): (Option<&Buffer<f32>>, _) = (nested.then_some(&map), gpu.buffer(&offset));
        let offset = nested.then_some(&offset);
        let args = args![codes, table, absmax, scales, map, offset, out, first as u64, n as u64];
        gpu.run("dequantize_4bit", &[T::ELEMENT], geometry::elements(n), args);
        out.read()
    });
    let want: Vec<T> = (first..first + n)
        .map(|at| {
            let block = at / 64;
            let scale = match nested {
                true => map[usize::from(scale_codes[block])] * absmax[block / 256] + offset[0],
                false => absmax[block],
            };
            let code = if at % 2 == 0 { codes[at / 2] >> 4 } else { codes[at / 2] & 15 };
            T::of(f64::from(table[usize::from(code)] * scale))
        })
        .collect();
    assert_eq!(got, want);
}

fn eight_bits<T: Float>(library: &Library, first: usize, rows: usize, cols: usize) {
    let codes: Vec<i8> = (0..(first + rows) * cols).map(|i| (i * 37) as i8).collect();
    let absmax = values::<f32>(1, first + rows);
    let got = in_every_order(library, |gpu| {
        let (codes, absmax, out) = (gpu.buffer(&codes), gpu.buffer(&absmax), gpu.fresh::<T>(rows * cols));
        let args = args![codes, absmax, out, first as u32, rows as u32, cols as u32];
        gpu.run("dequantize_int8", &[T::ELEMENT], geometry::elements(rows * cols), args);
        out.read()
    });
    let element = |i: usize| f32::from(codes[first * cols + i]) * (absmax[first + i / cols] * (1.0 / 127.0));
    assert_eq!(got, (0..rows * cols).map(|i| T::of(f64::from(element(i)))).collect::<Vec<_>>());
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    four_bits::<f32>(library, 0, 333, false);
    four_bits::<bf16>(library, 101, 20_000, true);
    four_bits::<f16>(library, 3, 1, true);
    eight_bits::<f32>(library, 2, 3, 33);
    eight_bits::<bf16>(library, 0, 1, 7);
    eight_bits::<f16>(library, 1, 4, 64);
}

#[test]
fn weights_are_values_times_scales() {
    on_emulator(check);
}
