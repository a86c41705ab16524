//! Models: the decoder and its settings, and their way from and to Hugging Face folders.

mod cache;
mod config;
mod decoder;
pub mod hf;

pub use cache::LayerCache;
pub use config::{DecoderConfig, Family, RopeSettings};
pub use decoder::{Block, Decoder, Head};
