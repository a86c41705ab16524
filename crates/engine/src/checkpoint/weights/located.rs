//! Where a tensor lies in the files of a folder.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use oarlock_comm::MappedFile;
use oarlock_tensor::cpu::quantized::{Format, Layout};
use safetensors::Dtype;

use super::matching::Named;

/// A tensor of some files.
#[derive(Clone, Debug)]
pub struct Located {
    /// The number of its file.
    pub file: usize,
    /// Where its elements lie in that file.
    pub bytes: Range<usize>,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// The dtype of its elements.
    pub dtype: Dtype,
    /// A quantized matrix, of which the files hold several parts.
    pub(super) packed: Option<Arc<dyn Packed>>,
}

/// A quantized matrix `[outputs, inputs]` in files.
pub(super) trait Packed: Debug + Send + Sync {
    /// Outputs and inputs.
    fn shape(&self) -> [usize; 2];

    /// The layout of a matrix that layers compute with as it is.
    fn layout(&self) -> Option<Layout> {
        None
    }

    /// The words of such a matrix.
    fn words(&self, _files: &[MappedFile]) -> Option<Vec<i32>> {
        None
    }

    /// Elements of any other, in row-major order.
    fn read(&self, _files: &[MappedFile], _elements: Range<usize>, _out: &mut [f32]) {}

    /// The type that the files give the bytes of the codes, where these have 4 bits.
    fn four_bit_storage(&self) -> Option<Dtype> {
        None
    }
}

impl Located {
    /// Whether it is a quantized matrix, of which the files hold several parts.
    pub fn is_quantized(&self) -> bool {
        self.packed.is_some()
    }

    /// The format of a matrix of 4 bits, and the type that the files give the bytes of its codes.
    pub fn four_bit(&self) -> Option<(Format, Dtype)> {
        let packed = self.packed.as_deref()?;
        Some((packed.layout()?.format, packed.four_bit_storage()?))
    }
}

impl Named for Located {
    fn sizes(&self) -> &[usize] {
        &self.shape
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }
}
