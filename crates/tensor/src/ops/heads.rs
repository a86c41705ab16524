//! Heads split from and merged into the last dim, and the last position of a sequence.

use oarlock_kernels::{Error, Result};

use crate::ops::{reshape, wrong_shape};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// `[.., H·D]` → `[.., H, D]`.
///
/// # Errors
/// A last dim that `head_dim` does not divide.
pub fn split_heads(x: &Tensor, head_dim: usize) -> Result<Tensor> {
    if head_dim == 0 || x.sizes().is_empty() || !x.shape().last().is_multiple_of(head_dim) {
        return Err(wrong_shape("split_heads", format!("a last dim that is a multiple of {head_dim}"), x));
    }
    let mut sizes = x.shape().with_last(x.shape().last() / head_dim)?.sizes().to_vec();
    sizes.push(head_dim);
    reshape(x, &sizes[..])
}

/// `[.., H, D]` → `[.., H·D]`.
///
/// # Errors
/// Fewer than two dims.
pub fn merge_heads(x: &Tensor) -> Result<Tensor> {
    let [rest @ .., heads, dim] = x.sizes() else {
        return Err(wrong_shape("merge_heads", "at least two dims", x));
    };
    let sizes: Vec<usize> = rest.iter().copied().chain([heads * dim]).collect();
    reshape(x, &sizes[..])
}

/// x `[1, S, I]` → the last position `[1, I]`; not recorded.
///
/// # Errors
/// Another batch size, or no position.
pub fn last_position(x: &Tensor) -> Result<Tensor> {
    let &[1, seq, dim] = x.sizes() else {
        return Err(wrong_shape("last_position", "[1, S, I]", x));
    };
    if seq == 0 {
        return Err(Error::Usage("last_position: the sequence is empty".to_string()));
    }
    Ok(x.view((seq - 1) * dim, Shape::new(&[1, dim])?))
}
