//! Weights of AWQ and GPTQ: integers in 32-bit words, with a scale and a zero point for each group of inputs.

use std::ops::Range;

use half::f16;
use oarlock_comm::MappedFile;
use safetensors::Dtype;

use super::parts::{Parts, Problem, f32s};
use crate::checkpoint::weights::located::{Located, Packed};

/// Where the words have which integer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// Words of consecutive inputs; zero points of consecutive outputs.
    Gptq {
        bits: u32,
        /// Whether zero points are stored less 1.
        zeros_less_one: bool,
    },
    /// Words of 8 outputs, interleaved.
    Awq,
}

/// A matrix in groups.
#[derive(Clone, Debug)]
pub(super) struct Grouped {
    shape: [usize; 2],
    order: Order,
    values: Located,
    zeros: Located,
    /// `[groups, outputs]`.
    scales: Vec<f32>,
    /// The group of each input.
    groups: Vec<usize>,
}

/// The shift of the output with this number among the 8 of a word of AWQ, which holds them as 0, 2, 4, 6, 1, 3, 5, 7.
const AWQ_SHIFTS: [u32; 8] = [0, 16, 4, 20, 8, 24, 12, 28];

impl Order {
    fn bits(self) -> u32 {
        match self {
            Order::Gptq { bits, .. } => bits,
            Order::Awq => 4,
        }
    }
}

impl Grouped {
    pub(super) fn take(parts: &mut Parts<'_>, order: Order, group_size: usize) -> Result<Grouped, Problem> {
        let per_word = (32 / order.bits()) as usize;
        let values = parts.take(".qweight")?;
        let (&[first, second], Dtype::I32) = (values.shape.as_slice(), values.dtype) else {
            return Err(
                parts.wrong(&format!("{:?} of {:?}; expected two sizes of I32", values.shape, values.dtype))
            );
        };
        let [n_in, n_out] = match order {
            Order::Gptq { .. } => [first * per_word, second],
            Order::Awq => [first, second * per_word],
        };
        let group_size = group_size.min(n_in).max(1);
        let n_groups = n_in.div_ceil(group_size);
        let zeros = parts.take_as(".qzeros", &[Dtype::I32], n_groups * n_out.div_ceil(per_word))?;
        let scales = parts.take_as(".scales", &[Dtype::F16, Dtype::BF16, Dtype::F32], n_groups * n_out)?;
        let groups: Vec<usize> = match parts.take_if_there(".g_idx") {
            None => (0..n_in).map(|input| input / group_size).collect(),
            Some(part) => words(parts.bytes(&part)).map(|group| group as usize).collect(),
        };
        if groups.len() != n_in || groups.iter().any(|&group| group >= n_groups) {
            return Err(parts.wrong("whose g_idx names groups that it has not"));
        }
        // A bias of its own has the name that it has in an unquantized model.
        let scales = floats(scales.dtype, parts.bytes(&scales));
        Ok(Grouped { shape: [n_out, n_in], order, values, zeros, scales, groups })
    }
}

impl Packed for Grouped {
    fn shape(&self) -> Vec<usize> {
        self.shape.to_vec()
    }

    fn read(&self, files: &[MappedFile], elements: Range<usize>, out: &mut [f32]) {
        let of = |part: &Located| &files[part.file][part.bytes.clone()];
        let word = |bytes: &[u8], at: usize| {
            u32::from_le_bytes([bytes[4 * at], bytes[4 * at + 1], bytes[4 * at + 2], bytes[4 * at + 3]])
        };
        let (values, zeros, [n_out, n_in]) = (of(&self.values), of(&self.zeros), self.shape);
        let bits = self.order.bits();
        let (per_word, mask) = ((32 / bits) as usize, (1u32 << bits) - 1);
        let in_order = |at: usize| bits * (at % per_word) as u32;
        let per_row = n_out.div_ceil(per_word);
        for (at, out) in elements.zip(out) {
            let (output, input) = (at / n_in, at % n_in);
            let group = self.groups[input];
            let zero_word = word(zeros, group * per_row + output / per_word);
            let (value, zero) = match self.order {
                Order::Gptq { zeros_less_one, .. } => {
                    let value = word(values, input / per_word * n_out + output) >> in_order(input);
                    let zero = (zero_word >> in_order(output)).wrapping_add(u32::from(zeros_less_one));
                    (value & mask, zero & mask)
                }
                Order::Awq => {
                    let shift = AWQ_SHIFTS[output % 8];
                    (word(values, input * per_row + output / 8) >> shift & mask, zero_word >> shift & mask)
                }
            };
            *out = (value as f32 - zero as f32) * self.scales[group * n_out + output];
        }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks().0.iter().map(|chunk| u32::from_le_bytes(*chunk))
}

fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let halves =
        |of: fn(u16) -> f32| bytes.as_chunks().0.iter().map(|chunk| of(u16::from_le_bytes(*chunk))).collect();
    match dtype {
        Dtype::F16 => halves(|bits| f16::from_bits(bits).to_f32()),
        Dtype::BF16 => halves(|bits| half::bf16::from_bits(bits).to_f32()),
        _ => f32s(bytes).collect(),
    }
}
