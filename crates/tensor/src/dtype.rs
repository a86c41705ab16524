//! Element types: what a tensor can hold, and how kernels read and write it as f32.

use bytemuck::Pod;
pub use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// bfloat16: the upper half of an f32.
    BF16,
    /// IEEE half precision.
    F16,
    /// Signed 32-bit integers: token ids, labels (-100 is ignored), positions.
    I32,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::BF16 | DType::F16 => 2,
        }
    }

    /// Whether it can hold gradients.
    pub fn is_float(self) -> bool {
        self != DType::I32
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I32 => "i32",
        })
    }
}

/// A Rust type that a tensor can hold.
pub trait Element: Pod + Send + Sync + PartialEq + std::fmt::Debug + 'static {
    /// Its dtype.
    const DTYPE: DType;
}

/// An element that kernels compute with: read as f32, computed in f32, rounded once when written.
pub trait Float: Element {
    /// The value in f32; exact.
    fn to_f32(self) -> f32;
    /// Rounded to nearest, ties to even.
    fn from_f32(x: f32) -> Self;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for bf16 {
    const DTYPE: DType = DType::BF16;
}
impl Element for f16 {
    const DTYPE: DType = DType::F16;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}

impl Float for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> bf16 {
        // Written out, without a branch, so that loops over it vectorise.
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let quiet_nan = bits | 0x0040_0000;
        bf16::from_bits(((if x.is_nan() { quiet_nan } else { rounded }) >> 16) as u16)
    }
}

impl Float for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f16 {
        f16::from_f32(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_as_half_does() {
        for bits in (0..u32::MAX).step_by(65_521).chain([0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0x7f7f_ffff, 0, 1 << 31]) {
            let x = f32::from_bits(bits);
            let (ours, half) = (<bf16 as Float>::from_f32(x), bf16::from_f32(x));
            assert!(ours.to_bits() == half.to_bits() || (x.is_nan() && ours.is_nan()), "{bits:#x}");
        }
    }
}
