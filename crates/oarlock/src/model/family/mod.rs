//! The families of models: one file each, which reads `config.json` into a description, writes it back, and says where
//! each parameter lies in the stored tensors. Nothing else in the crate knows a family by name.

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

pub(super) use self::standard::refuse_unsupported;
use super::config::{DecoderConfig, LayerConfig};
use super::hf::fields::{FieldWriter, Fields};
use crate::error::Result;

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
    /// Where a parameter lies.
    stored: fn(&DecoderConfig, &str) -> Stored,
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

    pub(super) fn stored(&self, config: &DecoderConfig, name: &str) -> Stored {
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

/// Where a parameter lies in files: a tensor, or some rows of one that holds several parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The tensor's name.
    pub tensor: String,
    /// The parameter's rows; `None`: the whole tensor.
    pub rows: Option<StoredRows>,
}

/// Rows of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredRows {
    /// The first row of the parameter.
    pub first: usize,
    /// The rows of the whole tensor.
    pub of: usize,
}

impl Stored {
    /// A tensor of the parameter's own.
    pub fn whole(tensor: impl Into<String>) -> Stored {
        Stored { tensor: tensor.into(), rows: None }
    }

    /// Rows of `tensor`, which holds the parameters of several modules one below the other: `parts` are their names with
    /// their rows. `None` where the parameter `name` is of none of them.
    pub fn fused(name: &str, tensor: &str, parts: &[(&str, usize)]) -> Option<Stored> {
        let mut first = 0;
        for (part, n_rows) in parts {
            if let Some(tensor) = renamed(name, &[(part, tensor)]) {
                let of = parts.iter().map(|(_, n)| n).sum();
                return Some(Stored { tensor, rows: Some(StoredRows { first, of }) });
            }
            first += n_rows;
        }
        None
    }

    /// The shape of the whole tensor, for a parameter of this shape.
    pub fn whole_shape(&self, shape: &[usize]) -> Vec<usize> {
        let mut sizes = shape.to_vec();
        if let (Some(rows), Some(n)) = (self.rows, sizes.first_mut()) {
            *n = rows.of;
        }
        sizes
    }

    /// The element of the tensor that is the parameter's first.
    pub fn first_elem(&self, shape: &[usize]) -> usize {
        let row_len: usize = shape.iter().skip(1).product();
        self.rows.map_or(0, |rows| rows.first * row_len)
    }

    /// Under transformers' own names.
    fn as_named(_config: &DecoderConfig, name: &str) -> Stored {
        Stored::whole(name)
    }
}

/// A name whose part before its last word, such as `weight`, ends as one of `names` does, with the other ending.
fn renamed(name: &str, names: &[(&str, &str)]) -> Option<String> {
    let (module, leaf) = name.rsplit_once('.')?;
    let prefix = |ours: &str| module.strip_suffix(ours).filter(|rest| rest.is_empty() || rest.ends_with('.'));
    names.iter().find_map(|(ours, theirs)| Some(format!("{}{theirs}.{leaf}", prefix(ours)?)))
}
