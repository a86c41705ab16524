//! The families of models: one file each, which reads `config.json` into a description, writes it back, and says what
//! each parameter is called in the files. Nothing else in the crate knows a family by name.

mod gemma2;
mod gemma3;
mod glm4;
mod llama;
mod minimind;
mod mistral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod standard;

use std::fmt;

use oarlock_engine::Result;

pub(super) use self::standard::refuse_unsupported;
use super::config::{DecoderConfig, LayerConfig};
use super::hf::fields::{FieldWriter, Fields};

/// All families.
static FAMILIES: [&Family; 10] = [
    &llama::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &minimind::FAMILY,
    &mistral::FAMILY,
    &phi3::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &glm4::FAMILY,
    &olmo2::FAMILY,
];

/// Reads a description from the fields of a `config.json`.
type Read = fn(&Fields<'_>) -> Result<DecoderConfig>;

/// A family of models: how its folders are read and written.
pub struct Family {
    /// Its `model_type`.
    pub model_type: &'static str,
    /// Its class in transformers: the default of `architectures`.
    pub class: &'static str,
    /// The class of its layers, which people name in FSDP's settings.
    pub layer_class: &'static str,
    /// `bos_token_id` where nothing is written.
    pub bos: Option<u32>,
    /// `eos_token_id` where nothing is written.
    pub eos: &'static [u32],
    /// `pad_token_id` where nothing is written.
    pub pad: Option<u32>,
    /// Reads the settings of a folder.
    read: Read,
    /// Writes the settings that the description has; the layer is the first.
    write: fn(&DecoderConfig, &LayerConfig, &mut FieldWriter),
    /// What the files call a parameter.
    stored: fn(&DecoderConfig, &str) -> String,
    /// What a new model of this kind can be called, and how its settings are read.
    fresh: &'static [(&'static str, Read)],
}

impl Family {
    /// The family of a `model_type`.
    pub fn of(model_type: &str) -> Option<&'static Family> {
        FAMILIES.into_iter().find(|family| family.model_type == model_type)
    }

    /// The `model_type` of every family.
    pub fn model_types() -> impl Iterator<Item = &'static str> {
        FAMILIES.into_iter().map(|family| family.model_type)
    }

    /// The `model_type`s that settings of a new model can have, which stand in no folder.
    pub fn new_model_types() -> impl Iterator<Item = &'static str> {
        FAMILIES.into_iter().flat_map(|family| family.fresh).map(|(name, _)| *name)
    }

    pub(super) fn read(&self, fields: &Fields<'_>) -> Result<DecoderConfig> {
        (self.read)(fields)
    }

    /// Reads the settings of a new model that is called `name`.
    pub(super) fn read_new(name: &str, fields: &Fields<'_>) -> Option<Result<DecoderConfig>> {
        let mut fresh = FAMILIES.into_iter().flat_map(|family| family.fresh);
        fresh.find(|(known, _)| *known == name).map(|(_, read)| read(fields))
    }

    pub(super) fn write(&self, config: &DecoderConfig, fields: &mut FieldWriter) {
        if let Some(layer) = config.layers.first() {
            (self.write)(config, layer, fields);
        }
    }

    pub(super) fn stored(&self, config: &DecoderConfig, name: &str) -> String {
        (self.stored)(config, name)
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        self.model_type == other.model_type
    }
}

/// Under transformers' own names.
fn as_named(_config: &DecoderConfig, name: &str) -> String {
    name.to_owned()
}

/// A name whose part before its last word, such as `weight`, ends as one of `names` does, with the other ending.
fn renamed(name: &str, names: &[(&str, &str)]) -> Option<String> {
    let (module, leaf) = name.rsplit_once('.')?;
    let prefix = |ours: &str| module.strip_suffix(ours).filter(|rest| rest.is_empty() || rest.ends_with('.'));
    names.iter().find_map(|(ours, theirs)| Some(format!("{}{theirs}.{leaf}", prefix(ours)?)))
}
