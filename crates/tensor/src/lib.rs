//! Tensors, fused ops and a tape for training language models.
//!
//! This crate knows no rank, no file and no configuration.

pub mod cpu;
mod dtype;
mod error;
mod par;

pub use dtype::{DType, Element, Float, bf16, f16};
pub use error::{Error, Result};
pub use par::Par;
