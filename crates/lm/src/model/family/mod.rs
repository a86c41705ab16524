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

use oarlock_engine::Result;

pub(super) use self::standard::refuse_unsupported;
use super::config::{DecoderConfig, Family};
use super::hf::fields::Fields;

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

    /// Reads the settings of a new model that is called `name`.
    pub(super) fn read_new(name: &str, fields: &Fields<'_>) -> Option<Result<DecoderConfig>> {
        let mut fresh = FAMILIES.into_iter().flat_map(|family| family.fresh);
        fresh.find(|(known, _)| *known == name).map(|(_, read)| read(fields))
    }
}
