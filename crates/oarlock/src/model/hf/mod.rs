//! Hugging Face folders: `config.json` and safetensors in and out, under the names and settings of each family.

mod bitsandbytes;
mod config;
pub(crate) mod elements;
pub(super) mod fields;
mod files;
mod generation;
mod load;
mod packed;
mod quantization;
pub(super) mod rope;
mod save;
mod sparsity;
mod weights;

pub use bitsandbytes::QuantizedFiles;
pub use config::{HfConfig, SpecialTokens};
pub(crate) use elements::{floats, not_finite};
pub(super) use files::Content;
pub use files::{FileDType, ModelFiles, ModelWriter, Weight, WrittenFile, check_weights_dtype};
pub use generation::generation_stops;
pub use load::{LoadedModel, load_for_inference, load_from};
pub use quantization::StoredQuantization;
pub use save::{ReadElements, SaveOptions, Staged, WorkingCopies, save_pretrained, staged_path};
pub use weights::SafetensorsSource;

#[cfg(test)]
mod tests;
