//! The second operand of an op: a tensor, or a number that stands for a tensor of it.

use oarlock_kernels::{DType, Error, Result, bf16, f16};

use crate::tensor::Tensor;

/// A tensor or a number. Ops take `impl Into<Operand>`, so both can be given as they are: `x.gt(&y)`, `x.gt(0.5)`.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// A tensor, which broadcasts.
    Tensor(&'a Tensor),
    /// A number, which takes the dtype of the tensor beside it.
    Number(f64),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Operand<'a> {
        Operand::Tensor(tensor)
    }
}

impl<'a> From<&&'a Tensor> for Operand<'a> {
    fn from(tensor: &&'a Tensor) -> Operand<'a> {
        Operand::Tensor(tensor)
    }
}

/// A number where an op takes one: of any common type; a `bool` is 1 or 0. Integers beyond 2^53 are rounded to a
/// multiple of a power of two, as f64 has it.
pub trait Number: Copy {
    /// The number.
    fn number(self) -> f64;
}

macro_rules! numbers {
    ($($T:ty: $x:ident => $number:expr;)*) => {
        $(
            impl Number for $T {
                fn number(self) -> f64 {
                    let $x = self;
                    $number
                }
            }
            impl From<$T> for Operand<'_> {
                fn from(number: $T) -> Self {
                    Operand::Number(number.number())
                }
            }
        )*
    };
}
numbers! {
    f64: x => x;
    f32: x => x.into();
    bf16: x => x.into();
    f16: x => x.into();
    i8: x => x.into();
    i16: x => x.into();
    i32: x => x.into();
    i64: x => x as f64;
    isize: x => x as f64;
    u8: x => x.into();
    u16: x => x.into();
    u32: x => x.into();
    u64: x => x as f64;
    usize: x => x as f64;
    bool: x => x.into();
}

impl<'a> Operand<'a> {
    /// The tensor, if it is one.
    pub(crate) fn as_tensor(&self) -> Option<&'a Tensor> {
        match *self {
            Operand::Tensor(tensor) => Some(tensor),
            Operand::Number(_) => None,
        }
    }

    /// The tensor, or a tensor with the number as its only element, of the dtype of `beside` and on its device.
    pub(crate) fn tensor(self, op: &'static str, beside: &Tensor) -> Result<Tensor> {
        match self {
            Operand::Tensor(tensor) => Ok(tensor.clone()),
            Operand::Number(number) => {
                check_number(op, number, beside.dtype())?;
                Tensor::full([], number, beside.dtype(), beside.device())
            }
        }
    }
}

/// Whether a dtype has this number: integers have no fractions.
pub(crate) fn check_number(op: &'static str, number: f64, dtype: DType) -> Result<()> {
    if dtype.is_float() || f64::from(number as i32) == number {
        return Ok(());
    }
    let expected = "an integer within the range of i32 for a tensor of i32".to_string();
    Err(Error::Shape { op, expected, got: number.to_string() })
}
