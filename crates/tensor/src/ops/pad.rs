//! A tensor with a margin, or without one.

use oarlock_kernels::Result;

use crate::ints::Ints;
use crate::ops::strided::{Part, put};
use crate::ops::{narrow, wrong_shape};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// x with elements of `value` around it: `widths` are those before and after the last dim, then those of the dim before
/// it, and so on. A negative width cuts off elements.
///
/// # Errors
/// An odd number of widths, more than two for each dim, or more cut off than there is.
pub fn pad(x: &Tensor, widths: impl Ints, value: f32) -> Result<Tensor> {
    let (widths, n_dims) = (widths.signed(), x.sizes().len());
    if !widths.len().is_multiple_of(2) || widths.len() > 2 * n_dims {
        let expected = format!("two widths for each of the last dims instead of {widths:?}");
        return Err(wrong_shape("pad", expected, x));
    }
    let (mut inner, mut sizes, mut before) = (x.clone(), x.sizes().to_vec(), vec![0; n_dims]);
    for (pair, dim) in widths.chunks_exact(2).zip((0..n_dims).rev()) {
        let (size, cut) = (sizes[dim], [pair[0], pair[1]].map(|width| width.min(0).unsigned_abs()));
        let Some(left) = size.checked_sub(cut[0].saturating_add(cut[1])) else {
            return Err(wrong_shape("pad", format!("at least {cut:?} elements to cut off dim {dim}"), x));
        };
        inner = narrow(&inner, dim, cut[0]..cut[0] + left)?;
        let added = [pair[0], pair[1]].map(|width| width.max(0).unsigned_abs());
        sizes[dim] = left.saturating_add(added[0]).saturating_add(added[1]);
        before[dim] = added[0];
    }
    if sizes == inner.sizes() {
        return Ok(inner);
    }
    let whole = Shape::new(&sizes)?;
    let strides: Vec<usize> = (0..n_dims).map(|d| sizes[d + 1..].iter().product()).collect();
    let first = before.iter().zip(&strides).map(|(before, stride)| before * stride).sum();
    put(&inner, Part { whole, shape: *inner.shape(), first, strides }, value)
}
