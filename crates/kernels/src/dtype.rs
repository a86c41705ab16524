//! Element types: what a tensor can hold, how kernels read and write it as f32, and what the host reads it as.

use std::fmt;
use std::str::FromStr;

use bytemuck::{CheckedBitPattern, NoUninit, Pod};
pub use half::{bf16, f16};

use crate::error::Error;

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

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => f32::NAME,
            DType::BF16 => bf16::NAME,
            DType::F16 => f16::NAME,
            DType::I32 => i32::NAME,
        })
    }
}

impl FromStr for DType {
    type Err = Error;

    /// Reads the name of a dtype: Oarlock's (`bf16`), torch's (`bfloat16`, `torch.bfloat16`) or Accelerate's (`fp16`).
    fn from_str(name: &str) -> Result<DType, Error> {
        Ok(match name.strip_prefix("torch.").unwrap_or(name) {
            "f32" | "float32" | "float" | "fp32" => DType::F32,
            "bf16" | "bfloat16" => DType::BF16,
            "f16" | "float16" | "half" | "fp16" => DType::F16,
            "i32" | "int32" | "int" => DType::I32,
            _ => {
                return Err(Error::Usage(format!(
                    "unknown dtype \"{name}\": expected f32, bf16, f16 or i32, or torch's name of one of these"
                )));
            }
        })
    }
}

/// A type of numbers on the host: tensors are made from them and read as them, and every conversion keeps the value or is
/// an error, but for floats, which are rounded to nearest.
///
/// | numbers | tensors of them | may be read from |
/// |---|---|---|
/// | `f32`, `bf16`, `f16` | the same | floats; integers that the type holds exactly |
/// | `f64` | f32, rounded | floats and integers |
/// | `i32` | i32 | integers |
/// | `i64` | i32, where it has the value | integers |
/// | `u8` | i32 | integers from 0 to 255 |
/// | `bool` | i32: 1 for true | integers: whether they are not 0 |
pub trait Scalar: CheckedBitPattern + NoUninit + Send + Sync + PartialEq + fmt::Debug + 'static {
    /// The name of the type.
    const NAME: &'static str;
    /// The dtype whose elements are of this type, if there is one.
    const ELEMENT: Option<DType>;
    /// What a tensor of these numbers holds.
    type Stored: Element;
    /// The number as a tensor holds it; `None` if it is outside the range of that type.
    fn stored(self) -> Option<Self::Stored>;
    /// Numbers as a tensor holds them; errors begin with `what`.
    ///
    /// # Errors
    /// [`Error::Usage`] for a number outside of the range of the dtype, with its index.
    fn store_all(what: &str, numbers: &[Self]) -> Result<Vec<Self::Stored>, Error> {
        let numbered = numbers.iter().enumerate();
        let checked = numbered.map(|(index, number)| {
            number.stored().ok_or_else(|| {
                let (kept, name) = (Self::Stored::DTYPE, Self::NAME);
                Error::Usage(format!(
                    "{what}: {number:?} at index {index} is outside the range of {kept}, which tensors keep {name} in"
                ))
            })
        });
        checked.collect()
    }
    /// A float, rounded to nearest; `None` for types of integers.
    fn from_float(x: f32) -> Option<Self>;
    /// An integer; `None` if it is not exact in this type. As a `bool` it is whether the integer is not 0.
    fn from_int(x: i32) -> Option<Self>;
}

/// A Rust type that a tensor can hold.
pub trait Element: Scalar + Pod {
    /// Its dtype.
    const DTYPE: DType;
    /// A number as an element: floats are rounded to nearest, integers toward zero.
    fn from_number(x: f64) -> Self;
}

/// What kernels take that only move elements: elements, and integers of their size in their place.
pub trait Word: Pod + Send + Sync {}
impl Word for u16 {}
impl Word for u32 {}
impl Word for f32 {}
impl Word for bf16 {}
impl Word for f16 {}
impl Word for i32 {}

/// An element that kernels compute with: read as f32, computed in f32, rounded once when written.
pub trait Float: Element {
    /// The value in f32; exact.
    fn to_f32(self) -> f32;
    /// Rounded to nearest, ties to even.
    fn from_f32(x: f32) -> Self;
}

macro_rules! float {
    ($T:ty, $name:literal, $dtype:expr) => {
        impl Scalar for $T {
            const NAME: &'static str = $name;
            const ELEMENT: Option<DType> = Some($dtype);
            type Stored = $T;
            fn stored(self) -> Option<$T> {
                Some(self)
            }
            fn from_float(x: f32) -> Option<$T> {
                Some(Float::from_f32(x))
            }
            fn from_int(x: i32) -> Option<$T> {
                let y: $T = Float::from_f32(x as f32);
                (f64::from(Float::to_f32(y)) == f64::from(x)).then_some(y)
            }
        }
        impl Element for $T {
            const DTYPE: DType = $dtype;
            fn from_number(x: f64) -> $T {
                Float::from_f32(x as f32)
            }
        }
    };
}
float!(f32, "f32", DType::F32);
float!(bf16, "bf16", DType::BF16);
float!(f16, "f16", DType::F16);

impl Scalar for f64 {
    const NAME: &'static str = "f64";
    const ELEMENT: Option<DType> = None;
    type Stored = f32;
    fn stored(self) -> Option<f32> {
        let rounded = self as f32;
        (rounded.is_finite() || !self.is_finite()).then_some(rounded)
    }
    fn from_float(x: f32) -> Option<f64> {
        Some(x.into())
    }
    fn from_int(x: i32) -> Option<f64> {
        Some(x.into())
    }
}

macro_rules! integer {
    ($T:ty, $name:literal, $element:expr, $x:ident => $from_int:expr) => {
        impl Scalar for $T {
            const NAME: &'static str = $name;
            const ELEMENT: Option<DType> = $element;
            type Stored = i32;
            #[allow(clippy::unnecessary_fallible_conversions, reason = "i64 is one of the types")]
            fn stored(self) -> Option<i32> {
                self.try_into().ok()
            }
            fn from_float(_x: f32) -> Option<$T> {
                None
            }
            fn from_int($x: i32) -> Option<$T> {
                $from_int
            }
        }
    };
}
integer!(i32, "i32", Some(DType::I32), x => Some(x));
integer!(i64, "i64", None, x => Some(x.into()));
integer!(u8, "u8", None, x => x.try_into().ok());
integer!(bool, "bool", None, x => Some(x != 0));

impl Element for i32 {
    const DTYPE: DType = DType::I32;
    fn from_number(x: f64) -> i32 {
        x as i32
    }
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
