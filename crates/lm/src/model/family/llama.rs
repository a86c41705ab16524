//! Llama 2, Llama 3, and MiniMind exported as llama.

use oarlock_engine::Result;
use oarlock_tensor::RopeScaling;
use oarlock_tensor::cpu::rope::RopeStyle;
use serde_json::json;

use super::standard::as_named;
use super::standard::{self, Defaults, Sizes};
use crate::model::config::{DecoderConfig, Family, LayerConfig, RopeSettings};
use crate::model::hf::fields::{FieldWriter, Fields};

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    class: "LlamaForCausalLM",
    layer_class: "LlamaDecoderLayer",
    bos: Some(1),
    eos: &[2],
    pad: None,
    read,
    write,
    stored: as_named,
    fresh: &[("llama", read)],
};

fn read(fields: &Fields<'_>) -> Result<DecoderConfig> {
    read_with(fields, &standard::LLAMA)
}

/// With other defaults.
pub(super) fn read_with(fields: &Fields<'_>, defaults: &Defaults) -> Result<DecoderConfig> {
    let config = standard::read(fields, &FAMILY, defaults)?;
    standard::full_attention_only(fields)?;
    let bias = fields.flag_or("attention_bias", false)?;
    let mlp_bias = fields.flag_or("mlp_bias", false)?;
    Ok(config.with_layers(|layer| {
        (layer.attention.qkv_bias, layer.attention.o_bias, layer.mlp.bias) = (bias, bias, mlp_bias);
    }))
}

fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    standard::write(config, layer, fields);
    standard::write_activation("hidden_act", layer, fields);
    fields.set("head_dim", json!(layer.attention.head_dim));
    fields.set("attention_bias", json!(layer.attention.qkv_bias));
    fields.set("mlp_bias", json!(layer.mlp.bias));
    fields.set_rope(&layer.attention.rope);
}

impl DecoderConfig {
    /// A llama of this size with heads of 64, as many for keys as for queries, and output weights of its own; what is
    /// to be otherwise is given with struct update syntax and [`DecoderConfig::with_layers`].
    pub fn llama(
        vocab_size: usize,
        hidden_size: usize,
        n_layers: usize,
        max_positions: usize,
    ) -> DecoderConfig {
        let n_heads = (hidden_size / 64).max(1);
        let sizes = Sizes {
            hidden_size,
            intermediate_size: (hidden_size * 8 / 3).next_multiple_of(64),
            n_layers,
            n_heads,
            n_kv_heads: n_heads,
            head_dim: hidden_size / n_heads,
        };
        let rope =
            RopeSettings { theta: 10_000.0, style: RopeStyle::Half, share: 1.0, scaling: RopeScaling::None };
        DecoderConfig { max_positions, ..standard::plain(&FAMILY, vocab_size, &sizes, 1e-5, rope) }
    }
}
