//! Hugging Face folders: `config.json` and safetensors in and out, under the names and settings of each family.

mod bitsandbytes;
mod config;
pub(super) mod fields;
mod generation;
mod grown;
mod heads;
mod load;
mod mark;
mod quantization;
pub(super) mod rope;
mod save;
mod sparsity;
mod unread;

pub use bitsandbytes::QuantizedFiles;
pub use config::{HfConfig, SpecialTokens};
pub use generation::{generation_note, generation_stops};
pub use grown::{NewRows, open_weights};
pub(crate) use load::layers_in_blocks;
pub use load::{LoadedModel, load_for_inference, load_from, load_in_blocks};
pub use mark::ModelMark;
pub use save::{SaveOptions, lay_out, merge_weights, save_pretrained, take_over_side_files};

#[cfg(test)]
mod tests;
