//! A tensor of a file: its shape, its type, and its data where it lies.

use crate::error::{Error, Result};
use crate::rows::dequantize;
use crate::types::TensorType;

/// The most dimensions that a tensor of a file has.
pub const MAX_DIMS: usize = 4;

/// A tensor of a file. Its data is borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    name: &'a str,
    dims: [u64; MAX_DIMS],
    n_dims: usize,
    tensor_type: TensorType,
    data: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// A tensor whose data has the size that follows from shape and type.
    pub(crate) fn new(
        name: &'a str,
        dims: [u64; MAX_DIMS],
        n_dims: usize,
        tensor_type: TensorType,
        data: &'a [u8],
    ) -> Tensor<'a> {
        Tensor { name, dims, n_dims, tensor_type, data }
    }

    /// The name, such as `blk.0.attn_q.weight`.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The dimensions, the contiguous one first: the reverse of what PyTorch and safetensors say.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..self.n_dims]
    }

    /// How the elements are stored.
    pub fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    /// The elements of a row, which is the first dimension.
    pub fn row_elems(&self) -> u64 {
        self.dims[0]
    }

    /// The number of rows, which is the product of the other dimensions.
    pub fn n_rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// The number of elements.
    pub fn n_elems(&self) -> u64 {
        self.dims.iter().product()
    }

    /// The data as it lies in the file, at no particular alignment.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The data of some rows.
    ///
    /// # Errors
    /// Rows that the tensor does not have.
    pub fn rows(&self, first_row: u64, n_rows: u64) -> Result<&'a [u8]> {
        let all = self.n_rows();
        let end = first_row.checked_add(n_rows).filter(|end| *end <= all);
        let row_bytes = self.tensor_type.row_bytes(self.dims[0]);
        let place = |row: u64| row_bytes.and_then(|bytes| usize::try_from(bytes.checked_mul(row)?).ok());
        let rows = end.and_then(|end| self.data.get(place(first_row)?..place(end)?));
        rows.ok_or(Error::Length {
            what: "the tensor",
            expected: first_row.saturating_add(n_rows).saturating_mul(self.dims[0]),
            found: self.n_elems(),
        })
    }

    /// Writes some rows as f32 into `out`, which has their length.
    ///
    /// # Errors
    /// Rows that the tensor does not have, another length, and types that cannot be read here.
    pub fn dequantize_rows(&self, first_row: u64, n_rows: u64, out: &mut [f32]) -> Result<()> {
        dequantize(self.tensor_type, self.rows(first_row, n_rows)?, out)
    }

    /// All elements as f32.
    ///
    /// # Errors
    /// Types that cannot be read here.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        // The data is in memory and has at least a sixteenth of a byte for each element.
        let n_elems = usize::try_from(self.n_elems()).unwrap_or(usize::MAX);
        let mut out = vec![0.0; n_elems];
        dequantize(self.tensor_type, self.data, &mut out)?;
        Ok(out)
    }
}
