//! The scales and minima of a block as its bytes hold them, read and written.

use half::f16;

use crate::blocks::planes::{Plane, pack, plane, unpack};
use crate::blocks::scheme::{Group, NO_OFFSET};

/// The 6 bits of each of the 16 scales of `Q3_K`, from their first byte.
const SCALES_OF_Q3_K: [Plane; 2] = [plane(96, 4, 8), plane(104, 2, 4)];

/// The 6 bits of each of the 8 scales of `IQ4_XS`.
const SCALES_OF_IQ4_XS: [Plane; 2] = [plane(4, 4, 1), plane(2, 2, 1)];

/// The half at a byte of the block.
pub(crate) fn stored_half(block: &[u8], byte: usize) -> f16 {
    f16::from_le_bytes([block[byte], block[byte + 1]])
}

fn half_at(block: &[u8], byte: usize) -> f32 {
    stored_half(block, byte).to_f32()
}

/// Writes a half, rounded to nearest even, and gives what was written.
pub(crate) fn put_half(block: &mut [u8], byte: usize, value: f32) -> f32 {
    let half = f16::from_f32(value);
    block[byte..byte + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// One scale for the block.
pub(crate) fn one_scale(block: &[u8], groups: &mut [Group]) {
    groups[0] = Group { scale: half_at(block, 0), offset: NO_OFFSET };
}

/// One scale and one minimum for the block.
pub(crate) fn scale_and_minimum(block: &[u8], groups: &mut [Group]) {
    groups[0] = Group { scale: half_at(block, 0), offset: half_at(block, 2) };
}

/// One scale of single precision for the block.
pub(crate) fn scale_of_q8_k(block: &[u8], groups: &mut [Group]) {
    let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    groups[0] = Group { scale, offset: NO_OFFSET };
}

/// A power of two for the block. Its steps are doubled, so it is halved.
pub(crate) fn scale_of_mxfp4(block: &[u8], groups: &mut [Group]) {
    groups[0] = Group { scale: half_power(block[0]), offset: NO_OFFSET };
}

/// 2^(e - 128), which is subnormal below e = 2.
pub(crate) fn half_power(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

/// A float of 8 bits without a sign for each group. Its steps are doubled, so it is halved.
pub(crate) fn scales_of_nvfp4(block: &[u8], groups: &mut [Group]) {
    for (byte, group) in block[..4].iter().zip(groups) {
        let (exponent, mantissa) = (u32::from(byte >> 3) & 15, f32::from(byte & 7));
        let value = match (*byte, exponent) {
            // The reference reads the pattern of NaN as zero.
            (0x7f, _) => 0.0,
            (_, 0) => mantissa / 512.0,
            _ => (1.0 + mantissa / 8.0) * f32::from_bits((exponent + 120) << 23),
        };
        *group = Group { scale: value * 0.5, offset: NO_OFFSET };
    }
}

/// 4 bits for the scale and 4 for the minimum of each group.
pub(crate) fn scales_of_q2_k(block: &[u8], groups: &mut [Group]) {
    let (scale, minimum) = (half_at(block, 80), half_at(block, 82));
    for (byte, group) in block[..16].iter().zip(groups) {
        *group = Group { scale: scale * f32::from(byte & 15), offset: -(minimum * f32::from(byte >> 4)) };
    }
}

/// 6 bits around 32 for each group.
pub(crate) fn scales_of_q3_k(block: &[u8], groups: &mut [Group]) {
    let mut codes = [0; 16];
    unpack(&SCALES_OF_Q3_K, block, &mut codes);
    around_32(half_at(block, 108), &codes, groups);
}

/// Writes the codes of the scales of `Q3_K`.
pub(crate) fn put_scales_of_q3_k(codes: &[u8; 16], block: &mut [u8]) {
    pack(&SCALES_OF_Q3_K, codes, block);
}

/// 6 bits around 32 for each group.
pub(crate) fn scales_of_iq4_xs(block: &[u8], groups: &mut [Group]) {
    let mut codes = [0; 8];
    unpack(&SCALES_OF_IQ4_XS, block, &mut codes);
    around_32(half_at(block, 0), &codes, groups);
}

fn around_32(scale: f32, codes: &[u8], groups: &mut [Group]) {
    for (code, group) in codes.iter().zip(groups) {
        *group = Group { scale: scale * f32::from(i16::from(*code) - 32), offset: NO_OFFSET };
    }
}

/// 6 bits for the scale and 6 for the minimum of each group.
pub(crate) fn scales_of_q4_k(block: &[u8], groups: &mut [Group]) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    for (group, (scale_code, minimum_code)) in groups.iter_mut().zip(codes_of_q4_k(block)) {
        *group = Group { scale: scale * f32::from(scale_code), offset: -(minimum * f32::from(minimum_code)) };
    }
}

/// The codes of the scale and the minimum of each group.
pub(crate) fn codes_of_q4_k(block: &[u8]) -> [(u8, u8); 8] {
    let bytes = &block[4..16];
    std::array::from_fn(|j| match j {
        0..4 => (bytes[j] & 63, bytes[j + 4] & 63),
        _ => ((bytes[j + 4] & 15) | (bytes[j - 4] >> 6) << 4, (bytes[j + 4] >> 4) | (bytes[j] >> 6) << 4),
    })
}

/// Writes the codes of scales and minima, which have 6 bits each: the first four of both whole, and of the last four the
/// low bits in a byte together and the high bits above those of the first four.
pub(crate) fn put_scales_of_q4_k(scales: &[u8; 8], minima: &[u8; 8], block: &mut [u8]) {
    for j in 0..4 {
        block[4 + j] = scales[j] & 63 | (scales[j + 4] >> 4) << 6;
        block[8 + j] = minima[j] & 63 | (minima[j + 4] >> 4) << 6;
        block[12 + j] = (scales[j + 4] & 15) | (minima[j + 4] & 15) << 4;
    }
}

/// 8 bits for each group.
pub(crate) fn scales_of_q6_k(block: &[u8], groups: &mut [Group]) {
    let scale = half_at(block, 208);
    for (code, group) in block[192..208].iter().zip(groups) {
        *group = Group { scale: scale * f32::from(code.cast_signed()), offset: NO_OFFSET };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scales_of_q4_k_are_read_as_they_were_written() {
        let scales = [1, 63, 17, 33, 62, 2, 48, 15];
        let minima = [5, 0, 63, 31, 16, 59, 7, 40];
        let mut block = [0xff; 144];
        put_half(&mut block, 0, 1.0);
        put_half(&mut block, 2, 1.0);
        put_scales_of_q4_k(&scales, &minima, &mut block);
        let mut groups = [Group { scale: 0.0, offset: 0.0 }; 8];
        scales_of_q4_k(&block, &mut groups);
        assert_eq!(groups.map(|group| group.scale), scales.map(f32::from));
        assert_eq!(groups.map(|group| -group.offset), minima.map(f32::from));
    }

    #[test]
    fn powers_are_halved_down_to_subnormal_ones() {
        assert_eq!(half_power(128), 1.0);
        assert_eq!(half_power(2), f32::MIN_POSITIVE);
        assert_eq!([half_power(1), half_power(0)], [f32::MIN_POSITIVE / 2.0, f32::MIN_POSITIVE / 4.0]);
    }
}
