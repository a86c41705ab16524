//! Qwen2 and Qwen2.5: biases on q, k and v.

use oarlock_engine::Result;
use serde_json::json;

use super::standard::as_named;
use super::standard::{self, Defaults};
use crate::model::config::{DecoderConfig, Family, LayerConfig};
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
    stored: as_named,
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
    let config = read_windows(fields, standard::read(fields, &FAMILY, &DEFAULTS)?)?;
    Ok(config.with_layers(|layer| layer.attention.qkv_bias = true))
}

/// The windows of layers from `max_window_layers` on, with `use_sliding_window` alone.
pub(super) fn read_windows(fields: &Fields<'_>, mut config: DecoderConfig) -> Result<DecoderConfig> {
    let window = standard::window(fields, Some(4096))?;
    let full = fields.count_or("max_window_layers", 28)?;
    let windowed = standard::windowed(fields, config.layers.len(), |index| index >= full)?;
    if fields.flag_or("use_sliding_window", false)? {
        for (layer, windowed) in config.layers.iter_mut().zip(windowed) {
            layer.attention.window = window.filter(|_| windowed);
        }
    }
    Ok(config)
}

pub(super) fn write_windows(config: &DecoderConfig, fields: &mut FieldWriter) {
    if config.layers.iter().any(|layer| layer.attention.window.is_some()) {
        fields.set("use_sliding_window", json!(true));
        standard::write_windows(config, fields);
    }
}

fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    standard::write(config, layer, fields);
    standard::write_unusual_head_dim(config, layer, fields);
    standard::write_activation("hidden_act", layer, fields);
    write_windows(config, fields);
    fields.set_rope(&layer.attention.rope);
}
