//! Models: the decoder and its settings, and their way from and to Hugging Face folders.

mod cache;
mod classifier;
mod config;
mod decoder;
pub mod hf;
mod recompute;

pub use cache::LayerCache;
pub use classifier::{ClassifierHead, ClassifierInput, ClassifierOutput, SequenceClassifier};
pub use config::{DecoderConfig, Family, RopeSettings};
pub use decoder::{Block, Decoder, Head};
pub use hf::{
    Differences, HfConfig, LoadedModel, Naming, SafetensorsSource, SaveOptions, SpecialTokens, Strict,
    WorkingCopies, load_for_inference, save_pretrained,
};
pub use recompute::Recompute;
