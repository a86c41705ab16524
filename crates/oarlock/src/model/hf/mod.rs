//! Hugging Face folders: `config.json` and safetensors in and out, under the names and settings of each family.

mod bitsandbytes;
mod config;
pub(crate) mod elements;
pub(super) mod fields;
mod files;
mod generation;
mod grown;
mod heads;
mod index;
mod load;
mod mark;
mod packed;
mod quantization;
pub(super) mod rope;
mod save;
mod sparsity;
mod staged;
mod unread;
mod weights;

pub use bitsandbytes::QuantizedFiles;
pub use config::{HfConfig, SpecialTokens};
pub(crate) use elements::{floats, not_finite};
pub(super) use files::Content;
pub use files::{FileDType, ModelFiles, ModelWriter, Weight, WrittenFile, check_weights_dtype};
pub use generation::{generation_note, generation_stops};
pub use grown::{NewRows, open_weights};
pub(crate) use index::weight_files;
pub use load::{LoadedModel, load_for_inference, load_from};
pub use mark::ModelMark;
pub use quantization::StoredQuantization;
pub(crate) use save::side_files;
pub use save::{ReadElements, SaveOptions, WorkingCopies, save_pretrained};
pub(crate) use staged::ResultFile;
pub use staged::{Staged, staged_path};
pub use weights::SafetensorsSource;

#[cfg(test)]
mod tests;
