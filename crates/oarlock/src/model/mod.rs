//! Models: the decoder, composed from a description; the families that describe it; and Hugging Face folders.

mod block;
mod cache;
mod classifier;
mod config;
mod decoder;
mod family;
pub mod hf;
mod projection;
mod recompute;
mod rope;

pub use block::Block;
pub use cache::LayerCache;
pub use classifier::{ClassifierHead, ClassifierInput, ClassifierOutput, SequenceClassifier};
pub use config::{
    AttentionConfig, DecoderConfig, LayerConfig, MlpConfig, NormConfig, NormPlacement, QkNorm, RopeSettings,
};
pub use decoder::{Decoder, Head};
pub use family::{Family, Stored, StoredRows};
pub use hf::{
    Differences, HfConfig, LoadedModel, SafetensorsSource, SaveOptions, SpecialTokens, Strict, WorkingCopies,
    load_for_inference, save_pretrained,
};
pub use recompute::Recompute;
