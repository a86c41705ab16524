//! Models: the decoder, composed from a description; the families that describe it; and Hugging Face folders.

mod answers;
mod block;
mod cache;
mod classifier;
mod config;
mod decoder;
mod each;
mod embedding;
mod family;
mod head;
pub mod hf;
mod projection;
mod quantize;
mod recompute;
mod rope;
mod rows;
mod value_head;

pub use answers::LogProbs;
pub use block::Block;
pub use cache::LayerCache;
pub(crate) use cache::PageOfLayer;
pub use classifier::{ClassifierHead, ClassifierInput, ClassifierOutput, SequenceClassifier};
pub use config::{
    AttentionConfig, DecoderConfig, Family, LayerConfig, MlpConfig, NormConfig, NormPlacement, QkNorm,
    RopeSettings,
};
pub use decoder::{Decoder, LossOptions};
pub use head::Head;
pub(crate) use hf::layers_in_blocks;
pub use hf::{
    HfConfig, LoadedModel, ModelMark, SaveOptions, SpecialTokens, load_for_inference, load_in_blocks,
    merge_weights, save_pretrained,
};
pub use recompute::Recompute;
pub(crate) use rope::Turning;
pub use rows::for_rows;
pub(crate) use rows::rows;
pub(crate) use value_head::{
    FILE as VALUE_HEAD_FILE, is_of_value_head, take_over_value_head, with_value_head,
};
pub use value_head::{ValueHead, ValueHeadSource, value_head_folder};
