//! Weights of 8 bits as bitsandbytes stores them (LLM.int8): integers, and the largest magnitude of each row.

use oarlock_comm::MappedFile;
use oarlock_tensor::cpu::quantized::{Format, Layout};
use safetensors::Dtype;

use super::parts::{Parts, Problem, words_of};
use crate::checkpoint::weights::located::{Located, Packed};

/// A matrix of 8 bits.
#[derive(Clone, Debug)]
pub(super) struct EightBit {
    layout: Layout,
    codes: Located,
    absmax: Located,
}

impl EightBit {
    pub(super) fn take(parts: &mut Parts<'_>) -> Result<EightBit, Problem> {
        let codes = parts.take(".weight")?;
        let (&[rows, cols], Dtype::I8) = (codes.shape.as_slice(), codes.dtype) else {
            return Err(
                parts.wrong(&format!("{:?} of {:?}; expected two sizes of I8", codes.shape, codes.dtype))
            );
        };
        let absmax = parts.take_as(".SCB", &[Dtype::F32], rows)?;
        if let Some(format) = parts.take_if_there(".weight_format")
            && parts.bytes(&format).iter().any(|&byte| byte != 0)
        {
            return Err(
                parts.wrong("in the order of a GPU's tiles; only weight_format 0 (rows) is supported")
            );
        }
        Ok(EightBit { layout: Layout { rows, cols, format: Format::Int8 }, codes, absmax })
    }
}

impl Packed for EightBit {
    fn shape(&self) -> Vec<usize> {
        [self.layout.rows, self.layout.cols].to_vec()
    }

    fn layout(&self) -> Option<Layout> {
        Some(self.layout)
    }

    fn words(&self, files: &[MappedFile]) -> Option<Vec<i32>> {
        Some(words_of(&[&self.codes, &self.absmax].map(|part| &files[part.file][part.bytes.clone()])))
    }
}
