//! Mistral: a llama whose layers may all see a sliding window.

use oarlock_engine::Result;
use serde_json::json;

use super::standard::as_named;
use super::standard::{self, Defaults};
use crate::model::config::{DecoderConfig, Family, LayerConfig};
use crate::model::hf::fields::{FieldWriter, Fields};

pub(super) static FAMILY: Family = Family {
    model_type: "mistral",
    class: "MistralForCausalLM",
    layer_class: "MistralDecoderLayer",
    bos: Some(1),
    eos: &[2],
    pad: None,
    read,
    write,
    stored: as_named,
    fresh: &[("mistral", read)],
};

const DEFAULTS: Defaults = Defaults {
    intermediate_size: |_| 14_336,
    n_kv_heads: Some(8),
    max_positions: 131_072,
    ..standard::LLAMA
};

fn read(fields: &Fields<'_>) -> Result<DecoderConfig> {
    let config = standard::read(fields, &FAMILY, &DEFAULTS)?;
    let window = standard::window(fields, Some(4096))?;
    Ok(config.with_layers(|layer| layer.attention.window = window))
}

fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    standard::write(config, layer, fields);
    standard::write_activation("hidden_act", layer, fields);
    fields.set("head_dim", json!(layer.attention.head_dim));
    fields.set("sliding_window", json!(layer.attention.window));
    fields.set_rope(&layer.attention.rope);
}
