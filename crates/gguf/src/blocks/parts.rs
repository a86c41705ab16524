//! Blocks taken apart, for products that compute with codes and scales as they are.

use half::f16;

use super::planes::unpack;
use super::scales::{codes_of_q4_k, stored_half};
use super::scheme::{Levels, MAX_BLOCK, MAX_GROUPS};
use crate::types::TensorType;

/// The codes and scales of a block, as it holds them.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// A code for each element; 128 more than the code where codes are signed. The rest is zero.
    pub codes: [u8; MAX_BLOCK],
    /// The scale of the block.
    pub scale: f16,
    /// What is added to all elements, or of types in blocks of 256 subtracted, where the type has that.
    pub minimum: f16,
    /// What the scale of each group is multiplied with, in types of blocks of 256.
    pub scales: [i8; MAX_GROUPS],
    /// What the minimum of each group is multiplied with.
    pub minima: [i8; MAX_GROUPS],
}

impl Parts {
    /// Takes a block of `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`, `Q4_K`, `Q5_K` or `Q6_K` apart. `None` for other types, and for
    /// another number of bytes.
    #[must_use]
    pub fn of(tensor_type: TensorType, block: &[u8]) -> Option<Parts> {
        if block.len() != tensor_type.block_bytes() {
            return None;
        }
        let zero = f16::ZERO;
        let (mut codes, mut scales, mut minima) = ([0; MAX_BLOCK], [0; MAX_GROUPS], [0; MAX_GROUPS]);
        let (scale, minimum) = match tensor_type {
            TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => (stored_half(block, 0), zero),
            TensorType::Q4_1 | TensorType::Q5_1 => (stored_half(block, 0), stored_half(block, 2)),
            TensorType::Q4_K | TensorType::Q5_K => {
                for (group, (scale, minimum)) in codes_of_q4_k(block).into_iter().enumerate() {
                    (scales[group], minima[group]) = (scale.cast_signed(), minimum.cast_signed());
                }
                (stored_half(block, 0), stored_half(block, 2))
            }
            TensorType::Q6_K => {
                scales.iter_mut().zip(&block[192..208]).for_each(|(scale, byte)| *scale = byte.cast_signed());
                (stored_half(block, 208), zero)
            }
            _ => return None,
        };
        let scheme = super::scheme(tensor_type)?;
        let used = &mut codes[..tensor_type.block_elems()];
        unpack(scheme.planes, block, used);
        if let Levels::Signed = scheme.levels {
            used.iter_mut().for_each(|code| *code ^= 0x80);
        }
        Some(Parts { codes, scale, minimum, scales, minima })
    }
}
