//! The second operand of an op: a tensor, or a number that stands for a tensor of it.

use crate::dtype::DType;
use crate::error::{Error, Result};
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

macro_rules! numbers {
    ($($T:ty),*) => {
        $(
            impl From<$T> for Operand<'_> {
                fn from(number: $T) -> Self {
                    Operand::Number(number.into())
                }
            }
        )*
    };
}
numbers!(f64, f32, i32);

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
