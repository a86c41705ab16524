//! Quantized weights: values times scales, bitwise identical.

use half::{bf16, f16};
use oarlock_cuda::geometry;
use oarlock_reference::quantized::{FourBit, Int8};

use crate::emulator::{Buffer, Gpu, Library, args, in_every_order, on_emulator};
use crate::numbers::Float;

/// The codes, the map and the offset of scales.
type Nested = (Option<Buffer<u8>>, Option<Buffer<f32>>, Option<Buffer<f32>>);

/// Those of nested scales; none of others.
pub fn nested(gpu: Gpu, weight: &FourBit) -> Nested {
    let nested = weight.nested.as_ref();
    (
        nested.map(|nested| gpu.buffer(&nested.codes)),
        nested.map(|nested| gpu.buffer(&nested.map)),
        nested.map(|nested| gpu.buffer(&[nested.offset])),
    )
}

fn four_bits<T: Float>(library: &Library, first: usize, n: usize, is_nested: bool) {
    let w = FourBit::new(first + n, is_nested);
    let got = in_every_order(library, |gpu| {
        // No byte behind the last code is there to be read.
        let codes = gpu.buffer(&w.codes[..(first + n).div_ceil(2)]);
        let (table, absmax) = (gpu.buffer(&w.table), gpu.buffer(&w.absmax));
        let ((scales, map, offset), out) = (nested(gpu, &w), gpu.fresh::<T>(n));
        let (scales, map, offset) = (scales.as_ref(), map.as_ref(), offset.as_ref());
        let args = args![codes, table, absmax, scales, map, offset, out, first as u64, n as u64];
        gpu.run("dequantize_4bit", &[T::ELEMENT], geometry::elements(n), args);
        out.read()
    });
    assert_eq!(got, (first..first + n).map(|at| T::of(f64::from(w.element(at)))).collect::<Vec<_>>());
}

fn eight_bits<T: Float>(library: &Library, first: usize, rows: usize, cols: usize) {
    let w = Int8::new(first + rows, cols);
    let got = in_every_order(library, |gpu| {
        let (codes, absmax) = (gpu.buffer(&w.codes), gpu.buffer(&w.absmax));
        let out = gpu.fresh::<T>(rows * cols);
        let args = args![codes, absmax, out, first as u32, rows as u32, cols as u32];
        gpu.run("dequantize_int8", &[T::ELEMENT], geometry::elements(rows * cols), args);
        out.read()
    });
    let want = (first * cols..(first + rows) * cols).map(|at| T::of(f64::from(w.element(at))));
    assert_eq!(got, want.collect::<Vec<_>>());
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
