//! What ranks send in few bits: signs, as 1-bit optimizers do (`one_bit`), and integers with scales, as ZeRO++ does
//! (`quantized`).

pub(super) mod one_bit;
pub(super) mod quantized;
