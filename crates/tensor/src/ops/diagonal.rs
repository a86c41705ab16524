//! Diagonals of matrices, and matrices with a vector as their diagonal.

use oarlock_kernels::Result;

use crate::ints::Int;
use crate::ops::strided::{Part, put, take};
use crate::ops::{dim_of, wrong_shape};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// A vector as the diagonal of a matrix that is 0 elsewhere, or the diagonal of a matrix. Diagonal 1 is the one above
/// the main diagonal, -1 the one below.
///
/// # Errors
/// Other than one or two dims.
pub fn diag(x: &Tensor, diagonal: isize) -> Result<Tensor> {
    match x.sizes() {
        [n] => {
            let size = n.saturating_add(diagonal.unsigned_abs());
            let (first, _) = on_diagonal([size, size], [size, 1], diagonal);
            let whole = Shape::new(&[size, size])?;
            put(x, Part { whole, shape: *x.shape(), first, strides: vec![size + 1] }, 0.0)
        }
        [_, _] => self::diagonal(x, diagonal, 0, 1),
        _ => Err(wrong_shape("diag", "one or two dims", x)),
    }
}

/// The diagonal of the matrices in two dims, as a new last dim. An offset counts diagonals as [`diag`] does.
///
/// # Errors
/// Dims that x does not have, or twice the same.
pub fn diagonal(x: &Tensor, offset: isize, a: impl Int, b: impl Int) -> Result<Tensor> {
    let (a, b) = (dim_of("diagonal", x, a)?, dim_of("diagonal", x, b)?);
    if a == b {
        return Err(wrong_shape("diagonal", format!("two different dims instead of {a} twice"), x));
    }
    let sizes = x.sizes();
    let stride = |d: usize| sizes[d + 1..].iter().product::<usize>();
    let (first, len) = on_diagonal([sizes[a], sizes[b]], [stride(a), stride(b)], offset);
    let others = (0..sizes.len()).filter(|&d| d != a && d != b);
    let (mut shape, mut strides): (Vec<usize>, Vec<usize>) = others.map(|d| (sizes[d], stride(d))).unzip();
    shape.push(len);
    strides.push(stride(a) + stride(b));
    take(x, Part { whole: *x.shape(), shape: Shape::new(&shape)?, first, strides })
}

/// The first element and the length of a diagonal.
fn on_diagonal(sizes: [usize; 2], strides: [usize; 2], offset: isize) -> (usize, usize) {
    // A positive offset leaves out columns, a negative one rows.
    let (columns, rows) = if offset < 0 { (0, offset.unsigned_abs()) } else { (offset.unsigned_abs(), 0) };
    let (rows_left, columns_left) = (sizes[0].saturating_sub(rows), sizes[1].saturating_sub(columns));
    match rows_left.min(columns_left) {
        0 => (0, 0),
        len => (rows * strides[0] + columns * strides[1], len),
    }
}
