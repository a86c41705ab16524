//! Adapters: a model whose own weights stay, with small trained updates beside them (LoRA, DoRA, OFT), in PEFT's folders.
//!
//! [`adapt`] puts [`Lora`] or [`Oft`] layers into a decoder, [`AdaptedSource`] gives all of its parameters their first values, and
//! [`Adapter`] is an adapter that was read from a folder. A model of one's own takes them as layers.

mod adapt;
mod adaptation;
mod base;
mod folder;
mod freeze;
mod inference;
mod lora;
mod mixed;
mod oft;
mod origin;
mod peft_config;
mod pissa;
mod reference;
mod source;
mod targeted;
mod template_files;
mod update;
mod updates;

pub use adapt::{adapt, adapt_quantized};
pub use adaptation::{Adaptation, AdaptedModule, LowRank};
pub use base::Base;
pub use folder::{Adapter, adapter_files, settings_beside};
pub use freeze::freeze;
pub(crate) use inference::{assemble, beside, merging};
pub use inference::{
    load_for_inference, load_for_inference_as, load_quantized_for_inference, load_quantized_for_inference_as,
    load_with_adapters_as, tokenizer_folder,
};
pub use lora::{Lora, LoraLayer};
pub use oarlock_config::config::{
    AdapterArgs, AdapterConfig, AdapterKind, FreezeArgs, LoraConfig, LoraInit, LoraPlus, OftBlocks,
    OftConfig, Targets, TrainedLayers,
};
pub use oft::{Oft, OftLayer};
pub use pissa::{convert_pissa, converted_files};
pub use reference::as_reference;
pub use source::AdaptedSource;
pub(crate) use template_files::side_text;
pub use template_files::{TemplateFiles, stop_ids, template_files};
