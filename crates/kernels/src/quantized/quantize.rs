//! Quantizing a weight: the scale of each block or row, and the nearest code of each element.

use half::f16;

use super::{BLOCK, Code, Format, Layout, nested};
use crate::Cpu;
use crate::isa::multiversion;
use crate::pieces::{TASK_ELEMS, cut, for_pieces};

/// Elements that are compared at a time.
const LANES: usize = 16;
/// Blocks of a task.
const TASK_BLOCKS: usize = TASK_ELEMS / BLOCK;

impl Code {
    /// The indices in the order of their values, and the midpoints between neighbors.
    fn sorted(self) -> ([u8; 16], [f32; 15]) {
        let values = self.values();
        let mut order: [u8; 16] = std::array::from_fn(|i| i as u8);
        order.sort_by(|&a, &b| values[usize::from(a)].total_cmp(&values[usize::from(b)]));
        let value = |i: usize| values[usize::from(order[i])];
        (order, std::array::from_fn(|i| (value(i) + value(i + 1)) / 2.0))
    }
}

impl Layout {
    /// Quantizes a weight of [`Layout::n_elems`] elements into [`Layout::n_words`] words. An element that is not finite
    /// makes its block so.
    ///
    /// # Panics
    /// On slices of other lengths, and for blocks of GGUF, which files alone hold.
    pub fn quantize(&self, cpu: &Cpu, x: &[f32], words: &mut [i32]) {
        assert_eq!(x.len(), self.n_elems(), "a weight of {} x {}", self.rows, self.cols);
        assert_eq!(words.len(), self.n_words(), "a quantized weight of {} x {}", self.rows, self.cols);
        assert!(
            !matches!(self.format, Format::Blocks(_)),
            "a weight in blocks of GGUF is made by oarlock-gguf"
        );
        words.fill(0);
        let (codes, rest) = words.split_at_mut(self.parts()[0]);
        match self.format {
            Format::FourBit { code, nested } => self.four_bit(cpu, (code, nested), x, codes, rest),
            Format::Int8 => {
                self.int8(cpu, x, bytemuck::cast_slice_mut(codes), bytemuck::cast_slice_mut(rest))
            }
            Format::Blocks(_) => {}
        }
    }

    fn int8(&self, cpu: &Cpu, x: &[f32], codes: &mut [i8], absmax: &mut [f32]) {
        if self.cols == 0 {
            return;
        }
        let task_rows = (TASK_ELEMS / self.cols).max(1);
        let codes = &mut codes[..self.n_elems()];
        let pieces = (cut(codes, task_rows * self.cols), cut(absmax, task_rows));
        for_pieces(&cpu.par, self.rows.div_ceil(task_rows), pieces, |task, (codes, absmax)| {
            let x = &x[task * task_rows * self.cols..];
            let rows = x.chunks(self.cols).zip(codes.chunks_mut(self.cols));
            for ((x, codes), absmax) in rows.zip(absmax) {
                row(cpu.isa, x, codes, absmax);
            }
        });
    }

    fn four_bit(
        &self,
        cpu: &Cpu,
        (code, nested): (Code, bool),
        x: &[f32],
        codes: &mut [i32],
        rest: &mut [i32],
    ) {
        let mut absmax = vec![0.0; self.n_blocks()];
        let sorted = code.sorted();
        let pieces = (cut(bytemuck::cast_slice_mut(codes), TASK_ELEMS / 2), cut(&mut absmax, TASK_BLOCKS));
        for_pieces(&cpu.par, self.n_blocks().div_ceil(TASK_BLOCKS), pieces, |task, (codes, absmax)| {
            let first = task * TASK_ELEMS;
            blocks(cpu.isa, &sorted, &x[first..x.len().min(first + TASK_ELEMS)], codes, absmax);
        });
        match nested {
            false => rest.copy_from_slice(bytemuck::cast_slice(&absmax)),
            true => {
                let (scales, rest) = rest.split_at_mut(self.parts()[1]);
                let (nested, offset) = rest.split_at_mut(self.parts()[2]);
                let codes = &mut bytemuck::cast_slice_mut(scales)[..absmax.len()];
                let mean = nested::quantize(&absmax, codes, bytemuck::cast_slice_mut(nested));
                offset[0] = mean.to_bits() as i32;
            }
        }
    }
}

multiversion! {
    /// The codes of some blocks, and their scales.
    fn blocks(sorted: &([u8; 16], [f32; 15]), x: &[f32], codes: &mut [u8], absmax: &mut [f32]) {
        let (order, midpoints) = sorted;
        for ((x, codes), absmax) in x.chunks(BLOCK).zip(codes.chunks_mut(BLOCK / 2)).zip(absmax) {
            *absmax = largest(x);
            let at_least = absmax.max(1e-38);
            let inverse = 1.0 / at_least;
            let mut scaled = [0f32; BLOCK];
            match <&[f32; BLOCK]>::try_from(x) {
                Ok(x) => scaled.iter_mut().zip(x).for_each(|(scaled, x)| *scaled = x * inverse),
                // As bitsandbytes, which divides only the elements of a block that is cut off.
                Err(_) => scaled.iter_mut().zip(x).for_each(|(scaled, x)| *scaled = x / at_least),
            }
            let mut above = [[0i32; LANES]; BLOCK / LANES];
            for (above, scaled) in above.iter_mut().zip(scaled.as_chunks::<LANES>().0) {
                let mut count = [0i32; LANES];
                for midpoint in midpoints {
                    for (count, scaled) in count.iter_mut().zip(scaled) {
                        *count += i32::from(scaled > midpoint);
                    }
                }
                *above = count;
            }
            let above = above.as_flattened();
            // Nothing lies behind the end of a block that is cut off.
            let n = x.len();
            let index = |i: usize| if i < n { order[above[i] as usize & 15] } else { 0 };
            for (pair, byte) in codes.iter_mut().enumerate().take(n.div_ceil(2)) {
                *byte = index(2 * pair) << 4 | index(2 * pair + 1);
            }
        }
    }
}

multiversion! {
    /// The integers of a row, and its largest magnitude. bitsandbytes quantizes what is left of a weight in f16.
    fn row(x: &[f32], codes: &mut [i8], absmax: &mut f32) {
        let mut bits = 0;
        for x in x {
            bits = bits.max(f16::from_f32(*x).to_bits() & 0x7fff);
        }
        *absmax = f16::from_bits(bits).to_f32();
        let scale = 127.0 / *absmax;
        for (code, x) in codes.iter_mut().zip(x) {
            // A row of zeros stays one.
            *code = (f16::from_f32(*x).to_f32() * scale).round_ties_even() as i8;
        }
    }
}

/// The largest magnitude, or NaN where there is one: as integers, the bits of magnitudes have the same order.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    let bits = x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    let largest = f32::from_bits(bits);
    if largest.is_nan() { f32::NAN } else { largest }
}
