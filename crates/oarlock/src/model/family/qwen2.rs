//! Qwen2 and Qwen2.5: biases on q, k and v.

use serde_json::json;

use super::standard::{self, Defaults};
use super::{Family, Stored};
use crate::error::Result;
use crate::model::config::{DecoderConfig, LayerConfig};
use crate::model::hf::fields::{FieldWriter, Fields};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    layer_class: "Qwen2DecoderLayer",
    bos: None,
    eos: &[],
    pad: None,
    read,
    write,
    stored: Stored::as_named,
    fresh: &[("qwen2", read)],
};

pub(super) const DEFAULTS: Defaults = Defaults {
    vocab_size: 151_936,
    intermediate_size: |_| 22_016,
    n_kv_heads: Some(32),
    max_positions: 32_768,
    ..standard::LLAMA
};

fn read(fields: &Fields<'_>) -> Result<DecoderConfig> {
    let config = standard::read(fields, &FAMILY, &DEFAULTS)?;
    standard::silu_only(fields)?;
    standard::full_attention_only(fields, &config)?;
    Ok(config.with_layers(|layer| layer.attention.qkv_bias = true))
}

fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    standard::write(config, layer, fields);
    standard::write_unusual_head_dim(config, layer, fields);
    fields.set("hidden_act", json!("silu"));
    fields.set_rope(&layer.attention.rope);
}
