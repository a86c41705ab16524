//! OLMo 2: norms on what each part puts out, and on all heads of q and k together.

use oarlock_engine::Result;
use serde_json::json;

use super::standard::renamed;
use super::standard::{self, Defaults};
use crate::model::config::{DecoderConfig, Family, LayerConfig, NormPlacement, QkNorm};
use crate::model::hf::fields::{FieldWriter, Fields};

pub(super) static FAMILY: Family = Family {
    model_type: "olmo2",
    class: "Olmo2ForCausalLM",
    layer_class: "Olmo2DecoderLayer",
    bos: None,
    eos: &[50_279],
    pad: Some(1),
    read,
    write,
    stored,
    fresh: &[("olmo2", read)],
};

const DEFAULTS: Defaults = Defaults { vocab_size: 50_304, norm_eps: 1e-5, ..standard::LLAMA };

fn read(fields: &Fields<'_>) -> Result<DecoderConfig> {
    let config = standard::read(fields, &FAMILY, &DEFAULTS)?;
    let bias = fields.flag_or("attention_bias", false)?;
    Ok(config.with_layers(|layer| {
        (layer.attention.qkv_bias, layer.attention.o_bias) = (bias, bias);
        layer.attention.qk_norm = QkNorm::WholeProjection;
        layer.norm_placement = NormPlacement::Post;
    }))
}

fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    standard::write(config, layer, fields);
    standard::write_activation("hidden_act", layer, fields);
    standard::write_unusual_head_dim(config, layer, fields);
    fields.set("attention_bias", json!(layer.attention.qkv_bias));
    fields.set_rope(&layer.attention.rope);
}

fn stored(_config: &DecoderConfig, name: &str) -> String {
    let names = [
        ("post_self_attn_layernorm", "post_attention_layernorm"),
        ("post_mlp_layernorm", "post_feedforward_layernorm"),
    ];
    renamed(name, &names).unwrap_or_else(|| name.to_owned())
}
