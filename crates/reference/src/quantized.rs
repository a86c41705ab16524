//! Weights of 4 and 8 bits: values times scales, in f32, as each element is defined.

use crate::number::values;

/// Elements per scale of a weight of 4 bits.
const BLOCK: usize = 64;

/// A weight of 4 bits: two codes a byte, the first in the upper half.
#[allow(missing_docs)]
pub struct FourBit {
    pub codes: Vec<u8>,
    /// What codes stand for.
    pub table: Vec<f32>,
    /// The scales of blocks, or of blocks of 256 codes of scales.
    pub absmax: Vec<f32>,
    pub nested: Option<Nested>,
}

/// Scales that are codes themselves.
#[allow(missing_docs)]
pub struct Nested {
    pub codes: Vec<u8>,
    pub map: Vec<f32>,
    pub offset: f32,
}

impl FourBit {
    /// Any codes and scales. Codes end at whole words.
    pub fn new(n: usize, is_nested: bool) -> FourBit {
        let n_blocks = n.div_ceil(BLOCK);
        let nested = || Nested {
            codes: (0..n_blocks).map(|i| (i * 91) as u8).collect(),
            map: values(5, 256),
            offset: 0.3,
        };
        FourBit {
            codes: (0..n.div_ceil(8) * 4).map(|i| (i * 37 + i / 7 + 11) as u8).collect(),
            table: values(4, 16),
            absmax: values(6, if is_nested { n_blocks.div_ceil(256) } else { n_blocks }),
            nested: is_nested.then(nested),
        }
    }

    /// An element.
    pub fn element(&self, at: usize) -> f32 {
        let code = if at.is_multiple_of(2) { self.codes[at / 2] >> 4 } else { self.codes[at / 2] & 15 };
        let block = at / BLOCK;
        let scale = self.nested.as_ref().map_or_else(
            || self.absmax[block],
            |nested| nested.map[usize::from(nested.codes[block])] * self.absmax[block / 256] + nested.offset,
        );
        self.table[usize::from(code)] * scale
    }
}

/// A weight of 8 bits: integers of a row times its scale.
#[allow(missing_docs)]
pub struct Int8 {
    pub cols: usize,
    pub codes: Vec<i8>,
    pub absmax: Vec<f32>,
}

impl Int8 {
    /// Any codes and scales.
    pub fn new(rows: usize, cols: usize) -> Int8 {
        Int8 {
            cols,
            codes: (0..rows * cols).map(|i| (i * 37 + i / 7) as i8).collect(),
            absmax: values(4, rows),
        }
    }

    /// An element.
    pub fn element(&self, at: usize) -> f32 {
        f32::from(self.codes[at]) * (self.absmax[at / self.cols] * (1.0 / 127.0))
    }
}
