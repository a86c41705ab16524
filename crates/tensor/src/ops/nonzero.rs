//! Where a tensor is not 0.

use oarlock_kernels::{DType, Result};

use crate::tensor::Tensor;

/// x `[..]` → the indices of its elements that are not 0, in row-major order: i32 `[n, dims]`. NaN is not 0. How many rows
/// there are depends on the values, so the host waits for them. Not recorded.
///
/// # Errors
/// A dry device, which has no values.
pub fn nonzero(x: &Tensor) -> Result<Tensor> {
    let marked: Vec<bool> = match x.dtype() {
        DType::I32 => x.to_vec()?,
        _ => x.to_f32_vec()?.into_iter().map(|x| x != 0.0).collect(),
    };
    let sizes = x.sizes();
    let mut indices = Vec::new();
    for place in (0..marked.len()).filter(|&place| marked[place]) {
        let first = indices.len();
        let mut rest = place;
        for size in sizes.iter().rev() {
            indices.push((rest % size) as i32);
            rest /= size;
        }
        indices[first..].reverse();
    }
    let n = marked.iter().filter(|&&marked| marked).count();
    Tensor::from_slice(&indices, [n, sizes.len()], x.device())
}
