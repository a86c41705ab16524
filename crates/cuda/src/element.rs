//! The types of elements and scalars that kernels take.

use std::fmt;

/// A type of elements in device memory, or of a scalar parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// bfloat16: the upper half of an f32.
    BF16,
    /// IEEE half precision.
    F16,
    /// Signed integers of 8 bits.
    I8,
    /// Bytes.
    U8,
    /// Signed integers of 32 bits: token ids, labels, positions.
    I32,
    /// Unsigned integers of 32 bits: sizes and switches.
    U32,
    /// Unsigned integers of 64 bits: numbers of elements.
    U64,
    /// A [`Walk`](crate::Walk) over strided operands; only a scalar parameter.
    Walk,
    /// [`Pieces`](crate::Pieces) of memory; only a scalar parameter.
    Pieces,
}

impl Element {
    /// Bytes of one.
    pub fn size(self) -> usize {
        match self {
            Element::I8 | Element::U8 => 1,
            Element::BF16 | Element::F16 => 2,
            Element::F32 | Element::I32 | Element::U32 => 4,
            Element::F64 | Element::U64 => 8,
            Element::Walk => size_of::<crate::Walk>(),
            Element::Pieces => crate::Pieces::BYTES,
        }
    }

    /// Its name in kernels, and in their names.
    pub fn name(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::F64 => "f64",
            Element::BF16 => "bf16",
            Element::F16 => "f16",
            Element::I8 => "i8",
            Element::U8 => "u8",
            Element::I32 => "i32",
            Element::U32 => "u32",
            Element::U64 => "u64",
            Element::Walk => "walk",
            Element::Pieces => "pieces",
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
