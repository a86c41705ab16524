//! Hugging Face folders: `config.json` and safetensors in and out, under the names and settings of each family.

mod config;
mod fields;
mod load;
mod names;
mod rope;
mod save;
mod weights;

pub use config::{HfConfig, SpecialTokens};
pub use load::{LoadedModel, load_for_inference};
pub use names::Naming;
pub use save::{SaveOptions, WorkingCopies, save_pretrained};
pub use weights::SafetensorsSource;

#[cfg(test)]
mod tests;
