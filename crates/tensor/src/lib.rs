//! Tensors, fused ops and a tape for training language models.
//!
//! This crate knows no rank, no file and no configuration.

pub mod cpu;
mod dtype;
mod error;
mod par;
mod rope_table;

pub use dtype::{DType, Element, Float, bf16, f16};
pub use error::{Error, Result};
pub use par::Par;
pub use rope_table::{RopeScaling, RopeTable, Yarn, inverse_frequencies};
