//! Products with weights that stay in the blocks of GGUF, by dot products of integers.
//!
//! The rows of x are quantized as llama.cpp does: to 8 bits in blocks of the weight's size. Codes are multiplied and summed
//! as integers, which is exact in any order. What scales make of those sums is added in f32, block after block, multiplied
//! and added separately. So every CPU path gives the same bits, and a row of x has those that it has alone.
//!
//! A weight is stored in panels of 16 rows, in about the bytes that it has in a file. A vector of 64 bytes holds 4 elements of
//! each of the rows, as dot products of bytes take them.

mod activations;
mod form;
mod machine;
mod packed;
mod product;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use form::{BlockType, UNIT};
pub use packed::{BlockLayout, ROWS, Unit};
pub use product::{embed, product, product_scratch_bytes};
