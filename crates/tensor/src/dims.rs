//! The dims that a reduction goes over: one, several, or all.

use std::ops::RangeFull;

use oarlock_kernels::{Error, Result};

use crate::ints::{Int, place};
use crate::ops::wrong_shape;
use crate::tensor::Tensor;

/// A dim, several dims in an array or a slice, or all dims: `..`. Negative dims count from the end.
pub trait Dims: Copy {
    /// The dims; `None` for all of them.
    fn dims(self) -> Option<Vec<isize>>;
}

impl<T: Int> Dims for T {
    fn dims(self) -> Option<Vec<isize>> {
        Some(vec![self.signed()])
    }
}
impl<T: Int, const N: usize> Dims for [T; N] {
    fn dims(self) -> Option<Vec<isize>> {
        self.as_slice().dims()
    }
}
impl<T: Int> Dims for &[T] {
    fn dims(self) -> Option<Vec<isize>> {
        Some(self.iter().map(|dim| dim.signed()).collect())
    }
}
impl Dims for RangeFull {
    fn dims(self) -> Option<Vec<isize>> {
        None
    }
}

/// The dims of x that are meant, in ascending order.
pub(crate) fn dims_of(op: &'static str, x: &Tensor, dims: impl Dims) -> Result<Vec<usize>> {
    let Some(named) = dims.dims() else { return Ok((0..x.sizes().len()).collect()) };
    let mut dims = named.iter().map(|&dim| dim_of(op, x, dim)).collect::<Result<Vec<_>>>()?;
    dims.sort_unstable();
    dims.dedup();
    if dims.len() != named.len() {
        return Err(Error::Usage(format!("{op}: {named:?} names a dim twice")));
    }
    Ok(dims)
}

/// The dim of x that is meant.
pub(crate) fn dim_of(op: &'static str, x: &Tensor, dim: impl Int) -> Result<usize> {
    let dim = dim.signed();
    place(dim, x.sizes().len()).ok_or_else(|| wrong_shape(op, format!("a tensor with a dim {dim}"), x))
}
