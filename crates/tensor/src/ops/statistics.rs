//! Variances, norms, logarithms of sums, and whether any or all elements are true: made of sums and extremes.
//!
//! Between bf16 or f16 and the result everything is f32.

use oarlock_kernels::unary::Unary;
use oarlock_kernels::{DType, Error, Result};

use crate::dims::{Dims, dims_of};
use crate::ops::reduce::{count, keep, without};
use crate::ops::{eq, masked_fill, max_keepdim, mean_keepdim, ne, reshape, sum, sum_keepdim, unary};
use crate::tensor::Tensor;

/// The variance along the dims, which go away: the sum of squared distances from the mean, divided by the number of
/// elements less `correction`. torch's default for the correction is 1; it makes the estimate unbiased.
///
/// # Errors
/// A dim that x does not have, no more elements than the correction, or a tensor of integers.
pub fn var(x: &Tensor, dims: impl Dims, correction: usize) -> Result<Tensor> {
    in_f32(x, |x| variance("var", x, dims, correction))
}

/// The standard deviation along the dims, which go away: the square root of [`var`]. Where it is 0, its gradient is 0.
///
/// # Errors
/// As [`var`].
pub fn std(x: &Tensor, dims: impl Dims, correction: usize) -> Result<Tensor> {
    in_f32(x, |x| unary::apply(&variance("std", x, dims, correction)?, Unary::Root, "std"))
}

fn variance(op: &'static str, x: &Tensor, dims: impl Dims, correction: usize) -> Result<Tensor> {
    let dims = dims_of(op, x, dims)?;
    let n = count(op, x, &dims)?;
    if n <= correction {
        return Err(Error::Usage(format!("{op}: a correction of {correction} needs more than {n} elements")));
    }
    let squares = x.sub(&mean_keepdim(x, &dims[..])?)?.square()?;
    sum(&squares, &dims[..])?.div((n - correction) as f32)
}

/// The logarithm of the sum of `e^x` along the dims, which go away.
///
/// # Errors
/// A dim that x does not have, dims without an element, or a tensor of integers.
pub fn logsumexp(x: &Tensor, dims: impl Dims) -> Result<Tensor> {
    let dims = dims_of("logsumexp", x, dims)?;
    count("logsumexp", x, &dims)?;
    in_f32(x, |x| {
        let largest = largest_of(&x.detach(), &dims)?;
        // Infinities would cancel to NaN.
        let shift = masked_fill(&largest, &eq(&largest.abs()?, f32::INFINITY)?, 0.0)?;
        let sum = sum_keepdim(&x.sub(&shift)?.exp()?, &dims[..])?;
        reshape(&sum.log()?.add(&shift)?, without(x.shape(), &dims)?)
    })
}

/// The p-norm along the dims, which go away: the sum of absolute values for p = 1, the square root of the sum of squares
/// for p = 2, the largest absolute value for p = infinity. Where the norm is 0, its gradient is 0.
///
/// # Errors
/// Another p, a dim that x does not have, dims without an element for infinity, or a tensor of integers.
pub fn norm(x: &Tensor, p: f32, dims: impl Dims) -> Result<Tensor> {
    let dims = dims_of("norm", x, dims)?;
    in_f32(x, |x| match p {
        1.0 => sum(&x.abs()?, &dims[..]),
        2.0 => unary::apply(&sum(&x.square()?, &dims[..])?, Unary::Root, "norm"),
        f32::INFINITY => {
            count("norm", x, &dims)?;
            reshape(&largest_of(&x.abs()?, &dims)?, without(x.shape(), &dims)?)
        }
        _ => Err(Error::Usage(format!("norm: p is 1, 2 or infinity, and got {p}"))),
    })
}

/// Whether any element along the dims, which go away, is true, that is not 0: a mask.
///
/// # Errors
/// A dim that x does not have.
pub fn any(x: &Tensor, dims: impl Dims) -> Result<Tensor> {
    ne(&sum(&ne(x, 0)?, &dims_of("any", x, dims)?[..])?, 0)
}

/// Whether all elements along the dims, which go away, are true, that is not 0: a mask.
///
/// # Errors
/// A dim that x does not have.
pub fn all(x: &Tensor, dims: impl Dims) -> Result<Tensor> {
    eq(&sum(&eq(x, 0)?, &dims_of("all", x, dims)?[..])?, 0)
}

macro_rules! keepdim {
    ($($kept:ident: $name:ident($($arg:ident: $ty:ty),*);)*) => {
        $(
            #[doc = concat!("[`", stringify!($name), "()`], where the dims stay with size 1.")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($name), "()`].")]
            pub fn $kept(x: &Tensor, dims: impl Dims, $($arg: $ty),*) -> Result<Tensor> {
                keep(stringify!($name), x, dims, &$name(x, dims, $($arg),*)?)
            }
        )*
    };
}

keepdim! {
    var_keepdim: var(correction: usize);
    std_keepdim: std(correction: usize);
    logsumexp_keepdim: logsumexp();
    any_keepdim: any();
    all_keepdim: all();
}

/// [`norm`], where the dims stay with size 1.
///
/// # Errors
/// As [`norm`].
pub fn norm_keepdim(x: &Tensor, p: f32, dims: impl Dims) -> Result<Tensor> {
    keep("norm", x, dims, &norm(x, p, dims)?)
}

/// The largest element over the dims, which stay with size 1.
fn largest_of(x: &Tensor, dims: &[usize]) -> Result<Tensor> {
    dims.iter().try_fold(x.clone(), |largest, &dim| max_keepdim(&largest, dim))
}

/// f of x in f32, rounded to the dtype of x.
fn in_f32(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match x.dtype() {
        DType::F32 | DType::I32 => f(x),
        short => f(&x.cast(DType::F32)?)?.cast(short),
    }
}
