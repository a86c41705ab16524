//! Conversions to and from f32 without branches or library calls, so that loops over them vectorise for every type.

use crate::dtype::{DType, Float};

/// `x` in f32; exact.
#[inline(always)]
pub fn widen<T: Float>(x: T) -> f32 {
    match T::DTYPE {
        DType::F16 => f16_bits_to_f32(bytemuck::cast(x)),
        _ => x.to_f32(),
    }
}

/// `x` rounded to nearest, ties to even.
#[inline(always)]
pub fn narrow<T: Float>(x: f32) -> T {
    match T::DTYPE {
        DType::F16 => bytemuck::cast(f32_to_f16_bits(x)),
        _ => T::from_f32(x),
    }
}

#[inline(always)]
fn f16_bits_to_f32(half: u16) -> f32 {
    let magnitude = (u32::from(half) & 0x7fff) << 13;
    // Multiplying by 2^112 moves the exponent to f32's bias and normalizes subnormals.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled | special | (u32::from(half) & 0x8000) << 16)
}

#[inline(always)]
fn f32_to_f16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    // Adding 0.5 lets the adder round at the bit where f16's subnormals end.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let half = if magnitude >= 0x4780_0000 { special } else { finite };
    half as u16 | (bits >> 16) as u16 & 0x8000
}
