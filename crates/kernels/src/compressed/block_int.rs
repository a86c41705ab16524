//! Numbers as integers of 8 or 4 bits with a scale for each block: what ZeRO++ sends (Wang et al. 2023,
//! <https://arxiv.org/abs/2306.10209>), with the formulas of DeepSpeed's `csrc/quantization`.
//!
//! With L = 2^(bits - 1) and the largest magnitude m of a block, a code is `x · L / m`, rounded to the nearest integer (ties
//! to even) and cut off at -L and L - 1. It stands for `code · m / L`; in a block of zeros for 0. Numbers are encoded in
//! 32-bit words: all codes, the last word filled up with zeros, then `m / L` of each block as f32. Of two codes of 4 bits in
//! a byte the first is in the upper half.

use crate::dtype::Float;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::pieces::{TASK_ELEMS, cut, for_pieces};
use crate::{Cpu, Store};

/// The bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bits {
    /// For weights.
    Eight,
    /// For gradients.
    Four,
}

impl Bits {
    /// Numbers that share a scale.
    pub const fn block(self) -> usize {
        match self {
            Bits::Eight => EIGHT_BLOCK,
            Bits::Four => FOUR_BLOCK,
        }
    }

    /// The words of `n` numbers.
    pub const fn n_words(self, n: usize) -> usize {
        self.code_words(n) + n.div_ceil(self.block())
    }

    const fn code_words(self, n: usize) -> usize {
        n.div_ceil(match self {
            Bits::Eight => 4,
            Bits::Four => 8,
        })
    }
}

/// Numbers of a block. A task is a multiple of them.
const EIGHT_BLOCK: usize = 4096;
const FOUR_BLOCK: usize = 512;

/// L.
const EIGHT_LIMIT: f32 = 128.0;
const FOUR_LIMIT: f32 = 8.0;

instances! {
    /// Encodes `x` in [`Bits::n_words`] words. A block with an element that is not finite stands for NaN.
    ///
    /// # Panics
    /// On another number of words.
    pub fn quantize[T: Float](cpu: &Cpu, bits: Bits, x: &[T], words: &mut [i32]) {
        assert_eq!(words.len(), bits.n_words(x.len()), "block_int::quantize: the words of {} numbers", x.len());
        let (codes, scales) = words.split_at_mut(bits.code_words(x.len()));
        if let Some(last) = codes.last_mut() {
            *last = 0;
        }
        let pieces = (
            cut(bytemuck::cast_slice_mut::<i32, u8>(codes), 4 * bits.code_words(TASK_ELEMS)),
            cut(bytemuck::cast_slice_mut::<i32, f32>(scales), TASK_ELEMS / bits.block()),
        );
        for_pieces(&cpu.par, x.len().div_ceil(TASK_ELEMS), pieces, |task, (codes, scales)| {
            let first = task * TASK_ELEMS;
            let x = &x[first..x.len().min(first + TASK_ELEMS)];
            match bits {
                Bits::Eight => quantize_eight(cpu.isa, x, codes, scales),
                Bits::Four => quantize_four(cpu.isa, x, codes, scales),
            }
        });
    }
}

instances! {
    /// What encoded numbers stand for replaces the elements of `out`, or is added to them.
    ///
    /// # Panics
    /// On another number of words than [`Bits::n_words`].
    pub fn dequantize[T: Float](cpu: &Cpu, bits: Bits, words: &[i32], store: Store, out: &mut [T]) {
        assert_eq!(words.len(), bits.n_words(out.len()), "block_int::dequantize: the words of {} numbers", out.len());
        let (codes, scales) = words.split_at(bits.code_words(out.len()));
        let (codes, scales): (&[u8], &[f32]) = (bytemuck::cast_slice(codes), bytemuck::cast_slice(scales));
        cpu.par.chunks_mut(out, TASK_ELEMS, |task, out| {
            let codes = &codes[4 * bits.code_words(task * TASK_ELEMS)..];
            let scales = &scales[task * TASK_ELEMS / bits.block()..];
            match bits {
                Bits::Eight => dequantize_eight(cpu.isa, codes, scales, store, out),
                Bits::Four => dequantize_four(cpu.isa, codes, scales, store, out),
            }
        });
    }
}

/// `L / m` of a block.
#[inline(always)]
fn inverse_scale<T: Float>(x: &[T], limit: f32) -> f32 {
    // As integers, the bits of magnitudes have the same order, and those of NaN are the greatest.
    let bits = x.iter().map(|x| x.to_f32().to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    if bits == 0 { 1.0 } else { limit / f32::from_bits(bits) }
}

/// The code of a scaled number; that of NaN is 0.
#[inline(always)]
fn code(x: f32, limit: f32) -> i32 {
    x.round_ties_even().clamp(-limit, limit - 1.0) as i32
}

multiversion! {
    fn quantize_eight[T: Float](x: &[T], codes: &mut [u8], scales: &mut [f32]) {
        for ((x, codes), scale) in x.chunks(EIGHT_BLOCK).zip(codes.chunks_mut(EIGHT_BLOCK)).zip(scales) {
            let inverse = inverse_scale(x, EIGHT_LIMIT);
            for (byte, x) in codes.iter_mut().zip(x) {
                *byte = code(x.to_f32() * inverse, EIGHT_LIMIT) as u8;
            }
            *scale = 1.0 / inverse;
        }
    }
}

multiversion! {
    fn quantize_four[T: Float](x: &[T], codes: &mut [u8], scales: &mut [f32]) {
        for ((x, codes), scale) in x.chunks(FOUR_BLOCK).zip(codes.chunks_mut(FOUR_BLOCK / 2)).zip(scales) {
            let inverse = inverse_scale(x, FOUR_LIMIT);
            let half = |x: T| (code(x.to_f32() * inverse, FOUR_LIMIT) & 15) as u8;
            let (pairs, rest) = x.as_chunks::<2>();
            let mut bytes = codes.iter_mut();
            for ([first, second], byte) in pairs.iter().zip(&mut bytes) {
                *byte = half(*first) << 4 | half(*second);
            }
            if let ([last], Some(byte)) = (rest, bytes.next()) {
                *byte = half(*last) << 4;
            }
            *scale = 1.0 / inverse;
        }
    }
}

multiversion! {
    fn dequantize_eight[T: Float](codes: &[u8], scales: &[f32], store: Store, out: &mut [T]) {
        for ((out, codes), scale) in out.chunks_mut(EIGHT_BLOCK).zip(codes.chunks(EIGHT_BLOCK)).zip(scales) {
            for (out, code) in out.iter_mut().zip(codes) {
                store.put(out, f32::from(*code as i8) * scale);
            }
        }
    }
}

multiversion! {
    fn dequantize_four[T: Float](codes: &[u8], scales: &[f32], store: Store, out: &mut [T]) {
        for ((out, codes), scale) in out.chunks_mut(FOUR_BLOCK).zip(codes.chunks(FOUR_BLOCK / 2)).zip(scales) {
            // Shifted up and down again, a half keeps its sign.
            let first = |byte: u8| f32::from(byte as i8 >> 4) * scale;
            let second = |byte: u8| f32::from((byte << 4) as i8 >> 4) * scale;
            let (pairs, rest) = out.as_chunks_mut::<2>();
            let mut bytes = codes.iter();
            for (pair, byte) in pairs.iter_mut().zip(&mut bytes) {
                store.put(&mut pair[0], first(*byte));
                store.put(&mut pair[1], second(*byte));
            }
            if let ([last], Some(byte)) = (rest, bytes.next()) {
                store.put(last, first(*byte));
            }
        }
    }
}
