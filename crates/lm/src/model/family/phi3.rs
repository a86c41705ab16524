//! Phi-3, Phi-3.5 and Phi-4: q, k and v are one layer, gate and up another; LongRoPE on a share of each head.

use oarlock_engine::Result;
use oarlock_tensor::RopeScaling;
use serde_json::json;

use super::standard::as_named;
use super::standard::{self, Defaults};
use crate::model::config::{DecoderConfig, Family, LayerConfig};
use crate::model::hf::fields::{FieldWriter, Fields};
use crate::model::hf::rope::RopeDefaults;

pub(super) static FAMILY: Family = Family {
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    layer_class: "Phi3DecoderLayer",
    bos: Some(1),
    eos: &[32_000],
    pad: Some(32_000),
    read,
    write,
    stored: as_named,
    fresh: &[("phi3", read)],
};

const DEFAULTS: Defaults = Defaults {
    vocab_size: 32_064,
    hidden_size: 3072,
    intermediate_size: |_| 8192,
    max_positions: 4096,
    norm_eps: 1e-5,
    rope: RopeDefaults { theta: 10_000.0, share: Some(1.0), original_max_positions: Some(4096) },
    ..standard::LLAMA
};

fn read(fields: &Fields<'_>) -> Result<DecoderConfig> {
    let config = standard::read(fields, &FAMILY, &DEFAULTS)?;
    if !config
        .rotary_kinds()
        .iter()
        .all(|(rope, _)| matches!(rope.scaling, RopeScaling::None | RopeScaling::LongRope(_)))
    {
        let name = if fields.has("rope_parameters") { "rope_parameters" } else { "rope_scaling" };
        return Err(fields.wrong(name, "the rotary scalings of Phi-3 are default and longrope"));
    }
    let window = standard::window(fields, None)?;
    Ok(config.with_layers(|layer| {
        layer.attention.window = window;
        layer.attention.fused_qkv = true;
        layer.mlp.fused_gate_up = true;
    }))
}

fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    standard::write(config, layer, fields);
    standard::write_activation("hidden_act", layer, fields);
    standard::write_unusual_head_dim(config, layer, fields);
    fields.set("sliding_window", json!(layer.attention.window));
    if let RopeScaling::LongRope(long) = &layer.attention.rope.scaling {
        // It counts more than what stands among the rotary settings.
        fields.set("original_max_position_embeddings", json!(long.original_max_positions));
    }
    fields.set_rope(&layer.attention.rope);
}
