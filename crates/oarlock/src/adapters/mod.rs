//! Adapters: a model whose own weights stay, with small trained updates beside them (LoRA, DoRA), in PEFT's folders.
//!
//! [`adapt`] puts [`Lora`] layers into a decoder, [`AdaptedSource`] gives all of its parameters their first values, and
//! [`Adapter`] is an adapter that was read from a folder. A model of one's own takes [`Lora`] as a layer.

mod adapt;
mod base;
mod compare;
mod export;
mod folder;
mod freeze;
mod inference;
mod lora;
mod modelfile;
mod peft_config;
mod pissa;
mod source;
mod update;

pub use crate::config::{FreezeArgs, LoraArgs, LoraConfig, LoraInit, LoraPlus, Targets, TrainedLayers};
pub use adapt::{Adaptation, AdaptedModule, adapt, adapt_quantized};
pub use base::Base;
pub use compare::{Compared, PROMPTS};
pub use export::{ExportOptions, Exported, Quantized, export, tokenizer_folder};
pub use folder::{Adapter, adapter_files};
pub use freeze::freeze;
pub(crate) use inference::assemble;
pub use inference::{load_for_inference, load_quantized_for_inference};
pub use lora::{Lora, LoraLayer, as_reference};
pub use pissa::convert_pissa;
pub use source::AdaptedSource;
