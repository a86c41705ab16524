//! Where a tensor lies in the files of a folder.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use oarlock_comm::MappedFile;
use oarlock_tensor::cpu::block_quantized::BlockLayout;
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
    /// Of a tensor that the files hold in another form: what reads it.
    pub(super) packed: Option<Arc<dyn Packed>>,
}

/// A tensor that files hold in another form than its elements in a row: quantized, in several parts, or in another order.
pub trait Packed: Debug + Send + Sync {
    /// Its sizes; of a matrix of a linear layer outputs and inputs.
    fn shape(&self) -> Vec<usize>;

    /// The layout of a matrix that layers compute with as it is.
    fn layout(&self) -> Option<Layout> {
        None
    }

    /// The words of such a matrix.
    fn words(&self, _files: &[MappedFile]) -> Option<Vec<i32>> {
        None
    }

    /// The layout of a matrix in blocks, which layers can compute with as it is.
    fn blocks(&self) -> Option<BlockLayout> {
        None
    }

    /// The words of a matrix in blocks.
    fn block_words(&self, _files: &[MappedFile]) -> Option<Vec<i32>> {
        None
    }

    /// The layout of a matrix whose rows of blocks layers can dequantize part by part.
    fn row_blocks(&self) -> Option<Layout> {
        None
    }

    /// Some words of the rows of such a matrix. Whether all scales in rows that begin among them are finite.
    fn row_words(&self, _files: &[MappedFile], _words: Range<usize>, _out: &mut [f32]) -> bool {
        true
    }

    /// Elements of any other, in row-major order. What cannot be read is NaN.
    fn read(&self, _files: &[MappedFile], _elements: Range<usize>, _out: &mut [f32]) {}

    /// The type that the files give the bytes of the codes, where these have 4 bits.
    fn four_bit_storage(&self) -> Option<Dtype> {
        None
    }
}

impl Located {
    /// A tensor that its files hold in another form.
    pub fn packed(packed: Arc<dyn Packed>) -> Located {
        let (bytes, shape) = (0..0, packed.shape());
        Located { file: 0, bytes, shape, dtype: Dtype::F32, packed: Some(packed) }
    }

    /// Whether the files hold it in another form, such as a quantized matrix in several parts.
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
