//! MiniMind's own classes: the newest (norms on heads), that of 2025, and the seed era (rotary on neighboring channels,
//! names of its own). New models are the llama or the qwen3 that computes the same.

use oarlock_engine::Result;
use oarlock_tensor::cpu::rope::RopeStyle;
use serde_json::json;

use super::llama;
use super::qwen3;
use super::standard::renamed;
use super::standard::{self, Defaults, Sizes};
use crate::model::config::{DecoderConfig, Family, LayerConfig, QkNorm};
use crate::model::hf::fields::{FieldWriter, Fields, decimal};
use crate::model::hf::rope::{self, RopeDefaults};

pub(super) static FAMILY: Family = Family {
    model_type: "minimind",
    class: "MiniMindForCausalLM",
    layer_class: "MiniMindBlock",
    bos: Some(1),
    eos: &[2],
    pad: None,
    read,
    write,
    stored,
    fresh: &[("minimind", new_2025), ("minimind3", new_3)],
};

const ROPE: RopeDefaults = RopeDefaults { theta: 1e6, ..standard::LLAMA.rope };

const NEWEST: Defaults = Defaults {
    vocab_size: 6400,
    hidden_size: 768,
    intermediate_size: |hidden| {
        ((hidden as f64 * std::f64::consts::PI / 64.0).ceil() as usize).saturating_mul(64)
    },
    n_layers: 8,
    n_heads: 8,
    n_kv_heads: Some(4),
    max_positions: 32_768,
    rope: ROPE,
    tie_embeddings: true,
    ..standard::LLAMA
};

/// Under transformers' names, but without norms on heads.
const OF_2025: Defaults = Defaults {
    hidden_size: 512,
    intermediate_size: |hidden| (hidden.saturating_mul(8) / 3).div_ceil(64).saturating_mul(64),
    n_kv_heads: Some(2),
    norm_eps: 1e-5,
    ..NEWEST
};

/// The seed era's names of what stands outside of layers, and in them.
const NAMES: [(&str, &str); 3] =
    [("model.embed_tokens", "tok_embeddings"), ("model.norm", "norm"), ("lm_head", "output")];
const LAYER_NAMES: [(&str, &str); 9] = [
    ("self_attn.q_proj", "attention.wq"),
    ("self_attn.k_proj", "attention.wk"),
    ("self_attn.v_proj", "attention.wv"),
    ("self_attn.o_proj", "attention.wo"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("mlp.up_proj", "feed_forward.w3"),
];

fn read(fields: &Fields<'_>) -> Result<DecoderConfig> {
    let is_seed_era = fields.has("n_layers") || fields.has("dim");
    let has_head_norms = !fields.has("n_routed_experts");
    let config = match (is_seed_era, has_head_norms) {
        (true, _) => seed_era(fields)?,
        (false, true) => standard::read(fields, &FAMILY, &NEWEST)?
            .with_layers(|layer| layer.attention.qk_norm = QkNorm::PerHead),
        (false, false) => standard::read(fields, &FAMILY, &OF_2025)?,
    };
    standard::full_attention_only(fields)?;
    Ok(config)
}

/// The seed era's `LMConfig`.
fn seed_era(fields: &Fields<'_>) -> Result<DecoderConfig> {
    let hidden_size = fields.count_or("dim", 512)?;
    let n_heads = fields.count_or("n_heads", 8)?;
    let n_kv_heads = standard::kv_heads(fields, "n_kv_heads", n_heads, Some(2))?;
    let multiple_of = fields.count_or("multiple_of", 64)?;
    if multiple_of == 0 {
        return Err(fields.wrong("multiple_of", "expected at least 1"));
    }
    let two_thirds = hidden_size.saturating_mul(8) / 3;
    let max_positions = fields.count_or("max_seq_len", 8192)?;
    let vocab_size = fields.count_or("vocab_size", 6400)?;
    let sizes = Sizes {
        hidden_size,
        intermediate_size: match fields.count("hidden_dim")? {
            Some(size) => size,
            None => two_thirds.div_ceil(multiple_of).saturating_mul(multiple_of),
        },
        n_layers: standard::layers(fields, "n_layers", 8)?,
        n_heads,
        n_kv_heads,
        head_dim: standard::divided(fields, "dim", hidden_size, n_heads)?,
    };
    let eps = fields.number_or("norm_eps", 1e-5)? as f32;
    let rope = rope::read(fields, &ROPE, max_positions, RopeStyle::Interleaved)?;
    let activation = standard::activation(fields, NEWEST.activation)?;
    let config = standard::plain(&FAMILY, vocab_size, &sizes, eps, rope);
    let config = config.with_layers(|layer| layer.mlp.activation = activation);
    Ok(DecoderConfig { tie_embeddings: true, max_positions, ..config })
}

/// MiniMind2 turns neighboring channels of a head where llama turns those half a head apart; for weights that begin at
/// random that is only another order of the rows of q and k.
fn new_2025(fields: &Fields<'_>) -> Result<DecoderConfig> {
    let mut config = llama::read_with(fields, &OF_2025)?;
    if !fields.has("initializer_range") {
        // Its weights begin as torch's Linear does: uniform up to 1 / sqrt(inputs), which has this deviation.
        config.init_std = (1.0 / (3.0 * config.hidden_size as f64).sqrt()) as f32;
    }
    Ok(config)
}

fn new_3(fields: &Fields<'_>) -> Result<DecoderConfig> {
    qwen3::read_with(fields, &NEWEST)
}

fn is_seed_era(layer: &LayerConfig) -> bool {
    layer.attention.rope.style == RopeStyle::Interleaved
}

fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    fields.set("rope_theta", json!(layer.attention.rope.theta));
    if is_seed_era(layer) {
        fields.set("dim", json!(config.hidden_size));
        fields.set("hidden_dim", json!(layer.mlp.intermediate_size));
        fields.set("n_layers", json!(config.layers.len()));
        fields.set("n_heads", json!(layer.attention.n_heads));
        fields.set("n_kv_heads", json!(layer.attention.n_kv_heads));
        fields.set("max_seq_len", json!(config.max_positions));
        fields.set("norm_eps", decimal(layer.norm.eps));
        return;
    }
    standard::write(config, layer, fields);
    standard::write_activation("hidden_act", layer, fields);
    fields.set("head_dim", json!(layer.attention.head_dim));
    if layer.attention.qk_norm == QkNorm::None {
        // What tells MiniMind of 2025 from the newest.
        fields.set_where_absent("n_routed_experts", json!(4));
        fields.set_where_absent("use_moe", json!(false));
    }
}

fn stored(config: &DecoderConfig, name: &str) -> String {
    if !config.layers.first().is_some_and(is_seed_era) {
        return name.to_owned();
    }
    match name.strip_prefix("model.") {
        Some(in_layer) if in_layer.starts_with("layers.") => {
            renamed(in_layer, &LAYER_NAMES).unwrap_or_else(|| in_layer.to_owned())
        }
        _ => renamed(name, &NAMES).unwrap_or_else(|| name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HfConfig;

    #[test]
    fn seed_era_names() {
        let layers = DecoderConfig::llama(64, 64, 1, 8);
        let seed = DecoderConfig { family: &FAMILY, ..layers }
            .with_layers(|layer| layer.attention.rope.style = RopeStyle::Interleaved);
        let config = HfConfig::new(seed, Default::default());
        let name = |ours| config.stored(ours);
        assert_eq!(name("model.embed_tokens.weight"), "tok_embeddings.weight");
        assert_eq!(name("model.layers.11.self_attn.v_proj.weight"), "layers.11.attention.wv.weight");
        assert_eq!(name("model.layers.0.post_attention_layernorm.weight"), "layers.0.ffn_norm.weight");
        assert_eq!(name("model.layers.0.mlp.down_proj.weight"), "layers.0.feed_forward.w2.weight");
        assert_eq!(name("model.norm.weight"), "norm.weight");
        assert_eq!(name("lm_head.weight"), "output.weight");
    }
}
