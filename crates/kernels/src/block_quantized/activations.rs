//! The rows of x in 8 bits: `Q8_0` and `Q8_K` of ggml, with the sums of elements that the offsets of weights need.

use super::form::{Form, RUN, UNIT};
use crate::Cpu;
use crate::dtype::{Float, f16};
use crate::isa::multiversion;
use crate::pieces::{cut, for_pieces, task_rows};

/// Rows in 8 bits.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// The elements.
    pub codes: &'a [i8],
    /// What they are multiplied with, for each unit.
    pub scales: &'a [f32],
    /// The sums of the codes of [`Form::sum`] elements each.
    pub sums: &'a [i32],
}

/// Bytes of scratch memory for `m` rows of `k` elements.
pub(super) fn scratch_bytes(form: Form, m: usize, k: usize) -> usize {
    align_of::<i32>() + m * (k + 4 * (k / form.unit) + 4 * (k / form.sum()))
}

/// Quantizes rows of `k` elements, a multiple of the unit, into scratch memory.
pub(super) fn quantize<'s, T: Float>(
    cpu: &Cpu,
    form: Form,
    x: &[T],
    k: usize,
    scratch: &'s mut [u8],
) -> Rows<'s> {
    let (m, n_units, n_sums) = (x.len() / k, k / form.unit, k / form.sum());
    let start = scratch.as_ptr().align_offset(align_of::<i32>());
    let (scales, rest) = scratch[start..].split_at_mut(4 * m * n_units);
    let (sums, rest) = rest.split_at_mut(4 * m * n_sums);
    let codes: &mut [i8] = bytemuck::cast_slice_mut(&mut rest[..m * k]);
    let (scales, sums): (&mut [f32], &mut [i32]) =
        (bytemuck::cast_slice_mut(scales), bytemuck::cast_slice_mut(sums));
    let rows = task_rows(k);
    let outs = (cut(codes, rows * k), cut(scales, rows * n_units), cut(sums, rows * n_sums));
    for_pieces(&cpu.par, m.div_ceil(rows), outs, |task, (codes, scales, sums)| {
        let x = &x[task * rows * k..][..codes.len()];
        units(cpu.isa, form.unit, form.sum(), x, codes, scales, sums);
    });
    Rows { codes, scales, sums }
}

multiversion! {
    fn units[T: Float](unit: usize, sum: usize, x: &[T], codes: &mut [i8], scales: &mut [f32], sums: &mut [i32]) {
        let mut values = [0f32; UNIT];
        let outs = codes.chunks_exact_mut(unit).zip(scales.iter_mut()).zip(sums.chunks_exact_mut(unit / sum));
        for (x, ((codes, scale), sums)) in x.chunks_exact(unit).zip(outs) {
            let values = &mut values[..unit];
            values.iter_mut().zip(x).for_each(|(value, x)| *value = x.to_f32());
            // The bits of magnitudes are in their order, and those of NaN above all.
            let mut largest = 0;
            for x in &*values {
                largest = largest.max(x.to_bits() << 1);
            }
            let largest = f32::from_bits(largest >> 1);
            let by = if largest == 0.0 { 0.0 } else { 127.0 / largest };
            *scale = match unit {
                RUN => f16::from_f32(largest / 127.0).to_f32(),
                _ if largest == 0.0 => 0.0,
                _ => 1.0 / by,
            };
            for (codes, values) in codes.chunks_exact_mut(16).zip(values.chunks_exact(16)) {
                for (code, value) in codes.iter_mut().zip(values) {
                    *code = (value * by).round_ties_even() as i8;
                }
            }
            for (total, codes) in sums.iter_mut().zip(codes.chunks_exact(sum)) {
                *total = codes.iter().fold(0, |total, &code| total + i32::from(code));
            }
        }
    }
}
