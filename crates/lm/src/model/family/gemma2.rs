//! Gemma 2: norms of weight 1 + w on both sides of each part, every second layer with a sliding window, caps on scores
//! and logits, scaled embeddings.

use oarlock_engine::Result;
use serde_json::{Value, json};

use super::standard::renamed;
use super::standard::{self, Defaults};
use crate::model::config::{DecoderConfig, Family, LayerConfig, NormPlacement};
use crate::model::hf::fields::{FieldWriter, Fields, decimal};

pub(super) static FAMILY: Family = Family {
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    layer_class: "Gemma2DecoderLayer",
    bos: Some(2),
    eos: &[1],
    pad: Some(0),
    read,
    write,
    stored,
    fresh: &[("gemma2", read)],
};

pub(super) const DEFAULTS: Defaults = Defaults {
    vocab_size: 256_000,
    hidden_size: 2304,
    intermediate_size: |_| 9216,
    n_layers: 26,
    n_heads: 8,
    n_kv_heads: Some(4),
    head_dim: Some(256),
    max_positions: 8192,
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    tie_embeddings: true,
    ..standard::LLAMA
};

fn read(fields: &Fields<'_>) -> Result<DecoderConfig> {
    let config = read_common(fields, &FAMILY, &DEFAULTS, |index| index % 2 == 0)?;
    let cap = read_cap(fields, "attn_logit_softcapping", Some(50.0))?;
    let logit_cap = read_cap(fields, "final_logit_softcapping", Some(30.0))?;
    let config = config.with_layers(|layer| layer.attention.score_cap = cap);
    Ok(DecoderConfig { logit_cap, ..config })
}

pub(super) fn read_cap(fields: &Fields<'_>, name: &str, default: Option<f64>) -> Result<Option<f32>> {
    Ok(fields.written_or(name, default, Fields::number)?.map(|cap| cap as f32))
}

/// What Gemma 2 and 3 share; `windowed` says which layers have a window where nothing is written.
pub(super) fn read_common(
    fields: &Fields<'_>,
    family: &'static Family,
    defaults: &Defaults,
    windowed: impl Fn(usize) -> bool,
) -> Result<DecoderConfig> {
    let mut config = standard::read(fields, family, defaults)?;
    let window = standard::window(fields, Some(4096))?;
    let windowed = standard::windowed(fields, config.layers.len(), windowed)?;
    let bias = fields.flag_or("attention_bias", false)?;
    let scale = libm::pow(fields.number_or("query_pre_attn_scalar", 256.0)?, -0.5) as f32;
    config.embedding_scale = Some((config.hidden_size as f64).sqrt() as f32);
    config.final_norm.offset = 1.0;
    for (layer, windowed) in config.layers.iter_mut().zip(windowed) {
        layer.norm.offset = 1.0;
        layer.norm_placement = NormPlacement::Both;
        layer.attention.scale = Some(scale);
        layer.attention.window = window.filter(|_| windowed);
        (layer.attention.qkv_bias, layer.attention.o_bias) = (bias, bias);
    }
    Ok(config)
}

fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    write_common(config, layer, fields);
    fields.set("attn_logit_softcapping", cap(layer.attention.score_cap));
    fields.set_rope(&layer.attention.rope);
}

/// What Gemma 2 and 3 share.
pub(super) fn write_common(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    standard::write(config, layer, fields);
    standard::write_activation("hidden_activation", layer, fields);
    fields.set("head_dim", json!(layer.attention.head_dim));
    fields.set("attention_bias", json!(layer.attention.qkv_bias));
    // transformers takes a whole number alone.
    let scalar = f64::from(layer.attention.scale()).powi(-2).round();
    fields.set("query_pre_attn_scalar", json!(scalar as u64));
    fields.set("final_logit_softcapping", cap(config.logit_cap));
    standard::write_windows(config, fields);
}

fn cap(cap: Option<f32>) -> Value {
    cap.map_or(Value::Null, decimal)
}

pub(super) fn stored(_config: &DecoderConfig, name: &str) -> String {
    let names = [
        ("post_self_attn_layernorm", "post_attention_layernorm"),
        ("post_attention_layernorm", "pre_feedforward_layernorm"),
        ("post_mlp_layernorm", "post_feedforward_layernorm"),
    ];
    renamed(name, &names).unwrap_or_else(|| name.to_owned())
}
