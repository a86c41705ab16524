//! A tensor that is going to be written, before it has data.

use crate::reader::{MAX_NAME_BYTES, tensor_bytes};
use crate::tensor::MAX_DIMS;
use crate::types::TensorType;

/// A tensor that is going to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// The name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// The dimensions, the contiguous one first: the reverse of what PyTorch and safetensors say.
    pub dims: Vec<u64>,
    /// How the elements are stored.
    pub tensor_type: TensorType,
}

impl TensorPlan {
    /// A tensor of this name, shape and type. The first dimension is the contiguous one.
    pub fn new(name: impl Into<String>, dims: impl Into<Vec<u64>>, tensor_type: TensorType) -> TensorPlan {
        TensorPlan { name: name.into(), dims: dims.into(), tensor_type }
    }

    /// The number of the layer that the name begins with, as in `blk.7.`.
    pub fn layer(&self) -> Option<u32> {
        let rest = self.name.strip_prefix("blk.")?;
        rest.split_once('.')?.0.parse().ok()
    }

    /// The elements of a row.
    pub fn row_elems(&self) -> u64 {
        self.dims.first().copied().unwrap_or(1)
    }

    /// The bytes of the data, or what llama.cpp would refuse of the tensor.
    pub(crate) fn check(&self) -> std::result::Result<u64, String> {
        match self.name.len() {
            0 => return Err("it has no name".to_owned()),
            1..=MAX_NAME_BYTES => {}
            n => return Err(format!("its name has {n} bytes, and llama.cpp reads at most {MAX_NAME_BYTES}")),
        }
        if self.name.contains('\0') {
            return Err("its name contains the character NUL".to_owned());
        }
        if !(1..=MAX_DIMS).contains(&self.dims.len()) || self.dims.contains(&0) {
            let shape = &self.dims;
            return Err(format!(
                "its shape is {shape:?}, and 1 to {MAX_DIMS} dimensions above zero are allowed"
            ));
        }
        let mut dims = [1; MAX_DIMS];
        dims[..self.dims.len()].copy_from_slice(&self.dims);
        tensor_bytes(dims, self.tensor_type).map_err(|problem| format!("it {problem}"))
    }
}
