//! Qwen3, and MiniMind 3 exported as qwen3: norms on the heads of q and k.

use oarlock_engine::Result;
use serde_json::json;

use super::qwen2;
use super::standard::as_named;
use super::standard::{self, Defaults};
use crate::model::config::{DecoderConfig, Family, LayerConfig, QkNorm};
use crate::model::hf::fields::{FieldWriter, Fields};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    layer_class: "Qwen3DecoderLayer",
    bos: None,
    eos: &[],
    pad: None,
    read,
    write,
    stored: as_named,
    fresh: &[("qwen3", read)],
};

const DEFAULTS: Defaults = Defaults { head_dim: Some(128), ..qwen2::DEFAULTS };

fn read(fields: &Fields<'_>) -> Result<DecoderConfig> {
    read_with(fields, &DEFAULTS)
}

/// With other defaults.
pub(super) fn read_with(fields: &Fields<'_>, defaults: &Defaults) -> Result<DecoderConfig> {
    let config = qwen2::read_windows(fields, standard::read(fields, &FAMILY, defaults)?)?;
    let bias = fields.flag_or("attention_bias", false)?;
    Ok(config.with_layers(|layer| {
        (layer.attention.qkv_bias, layer.attention.o_bias) = (bias, bias);
        layer.attention.qk_norm = QkNorm::PerHead;
    }))
}

fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    standard::write(config, layer, fields);
    standard::write_activation("hidden_act", layer, fields);
    fields.set("head_dim", json!(layer.attention.head_dim));
    fields.set("attention_bias", json!(layer.attention.qkv_bias));
    qwen2::write_windows(config, fields);
    fields.set_rope(&layer.attention.rope);
}
