//! Models: the decoder, composed from a description; the families that describe it; and Hugging Face folders.

mod answers;
mod block;
mod cache;
mod classifier;
mod config;
mod decoder;
mod family;
pub mod hf;
mod matching;
mod projection;
mod quantized;
mod recompute;
mod rope;
mod state_dict;
mod value_head;

pub use answers::LogProbs;
pub use block::Block;
pub use cache::LayerCache;
pub use classifier::{ClassifierHead, ClassifierInput, ClassifierOutput, SequenceClassifier};
pub use config::{
    AttentionConfig, DecoderConfig, LayerConfig, MlpConfig, NormConfig, NormPlacement, QkNorm, RopeSettings,
};
pub use decoder::{Decoder, Head, LossOptions};
pub use family::Family;
pub use hf::{
    HfConfig, LoadedModel, ModelMark, SafetensorsSource, SaveOptions, SpecialTokens, StoredQuantization,
    WorkingCopies, load_for_inference, save_pretrained,
};
pub use matching::{Differences, Strict};
pub use quantized::{QuantizedLayers, QuantizedSource, QuantizedWeights};
pub use recompute::Recompute;
pub use state_dict::StateDictSource;
pub(crate) use value_head::is_of_value_head;
pub use value_head::{ValueHead, ValueHeadSource, value_head_folder};
