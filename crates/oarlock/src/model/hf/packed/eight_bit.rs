//! Weights of 8 bits as bitsandbytes stores them (LLM.int8): integers, and the largest magnitude of each row.

use std::ops::Range;

use oarlock_comm::MappedFile;
use safetensors::Dtype;

use super::super::weights::Located;
use super::{Parts, Problem, f32s};

/// A matrix of 8 bits.
#[derive(Clone, Debug)]
pub(in crate::model::hf) struct EightBit {
    pub shape: [usize; 2],
    values: Located,
    /// The largest magnitude of each row, which is 127.
    largest: Vec<f32>,
}

impl EightBit {
    pub(super) fn take(parts: &mut Parts<'_>) -> Result<EightBit, Problem> {
        let values = parts.take(".weight")?;
        let (&[rows, cols], Dtype::I8) = (values.shape.as_slice(), values.dtype) else {
            return Err(
                parts.wrong(&format!("{:?} of {:?}; expected two sizes of I8", values.shape, values.dtype))
            );
        };
        let largest = parts.take_as(".SCB", &[Dtype::F32], rows)?;
        let largest = f32s(parts.bytes(&largest)).collect();
        if let Some(format) = parts.take_if_there(".weight_format")
            && parts.bytes(&format).iter().any(|&byte| byte != 0)
        {
            return Err(
                parts.wrong("in the order of a GPU's tiles; only weight_format 0 (rows) is supported")
            );
        }
        Ok(EightBit { shape: [rows, cols], values, largest })
    }

    pub fn read(&self, files: &[MappedFile], elements: Range<usize>, out: &mut [f32]) {
        let bytes = &files[self.values.file][self.values.bytes.clone()];
        for ((at, &byte), out) in elements.clone().zip(&bytes[elements]).zip(out) {
            // In the order of bitsandbytes.
            *out = f32::from(byte as i8) * self.largest[at / self.shape[1]] * (1.0 / 127.0);
        }
    }
}
