//! GLM-4: neighboring channels of half of each head turn, norms stand on both sides of each part, q, k and v have
//! biases, gate and up are one layer.

use oarlock_engine::Result;
use oarlock_tensor::cpu::rope::RopeStyle;
use serde_json::json;

use super::standard::as_named;
use super::standard::{self, Defaults};
use crate::model::config::{DecoderConfig, Family, LayerConfig, NormPlacement};
use crate::model::hf::fields::{FieldWriter, Fields};
use crate::model::hf::rope::RopeDefaults;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4",
    class: "Glm4ForCausalLM",
    layer_class: "Glm4DecoderLayer",
    bos: None,
    eos: &[151_329, 151_336, 151_338],
    pad: Some(151_329),
    read,
    write,
    stored: as_named,
    fresh: &[("glm4", read)],
};

const DEFAULTS: Defaults = Defaults {
    vocab_size: 151_552,
    intermediate_size: |_| 13_696,
    n_layers: 40,
    n_kv_heads: Some(2),
    head_dim: Some(128),
    max_positions: 131_072,
    norm_eps: 1.5625e-7,
    rope: RopeDefaults { share: Some(0.5), ..standard::LLAMA.rope },
    ..standard::LLAMA
};

fn read(fields: &Fields<'_>) -> Result<DecoderConfig> {
    let config = standard::read(fields, &FAMILY, &DEFAULTS)?;
    let bias = fields.flag_or("attention_bias", true)?;
    Ok(config.with_layers(|layer| {
        layer.attention.qkv_bias = bias;
        layer.attention.rope.style = RopeStyle::Interleaved;
        layer.norm_placement = NormPlacement::Both;
        layer.mlp.fused_gate_up = true;
    }))
}

fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    standard::write(config, layer, fields);
    standard::write_activation("hidden_act", layer, fields);
    fields.set("head_dim", json!(layer.attention.head_dim));
    fields.set("attention_bias", json!(layer.attention.qkv_bias));
    // The default is not 1, so that 1 is written, too.
    fields.set("partial_rotary_factor", json!(layer.attention.rope.share));
    fields.set_rope(&layer.attention.rope);
}
