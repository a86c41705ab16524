//! The largest singular values of a matrix in the memory of the host.

use oarlock_kernels::decompose::singular;
pub use oarlock_kernels::decompose::singular::{Search, Singular};
use oarlock_kernels::{Error, Result};

use crate::device::Device;

/// The `n` largest singular values, and their vectors, of a matrix of these rows and columns in row-major order.
///
/// # Errors
/// Another number of elements, or more values than the matrix has.
pub fn largest_singular(
    device: &Device,
    matrix: &[f32],
    [rows, cols]: [usize; 2],
    n: usize,
    search: Search,
) -> Result<Singular> {
    if matrix.len() != rows * cols || n > rows.min(cols) {
        return Err(Error::Usage(format!(
            "largest_singular: {n} singular values of {} elements as a matrix of {rows} x {cols}",
            matrix.len()
        )));
    }
    Ok(singular::largest(device.host(), matrix, [rows, cols], n, search))
}
