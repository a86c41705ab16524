//! What most families share: the names of settings in transformers, and what they mean where they are not written.

use oarlock_engine::Result;
use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::ops::Activation;
use serde_json::{Value, json};

use crate::model::config::{
    AttentionConfig, DecoderConfig, Family, LayerConfig, MlpConfig, NormConfig, NormPlacement, QkNorm,
};
use crate::model::hf::fields::{FieldWriter, Fields, decimal};
use crate::model::hf::rope::{self, RopeDefaults};

/// No model has more layers.
const MOST_LAYERS: usize = DecoderConfig::MOST_LAYERS;

/// What a family means by a field that is not written.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    /// By the hidden size.
    pub(super) intermediate_size: fn(usize) -> usize,
    pub(super) n_layers: usize,
    pub(super) n_heads: usize,
    /// As many as query heads where absent.
    pub(super) n_kv_heads: Option<usize>,
    /// The hidden size divided by the heads where absent.
    pub(super) head_dim: Option<usize>,
    pub(super) max_positions: usize,
    pub(super) norm_eps: f64,
    pub(super) rope: RopeDefaults,
    /// The name of the field, and its value.
    pub(super) activation: (&'static str, &'static str),
    pub(super) tie_embeddings: bool,
}

/// Those of transformers' llama.
pub(super) const LLAMA: Defaults = Defaults {
    vocab_size: 32_000,
    hidden_size: 4096,
    intermediate_size: |_| 11_008,
    n_layers: 32,
    n_heads: 32,
    n_kv_heads: None,
    head_dim: None,
    max_positions: 2048,
    norm_eps: 1e-6,
    rope: RopeDefaults { theta: 10_000.0, share: None, original_max_positions: None },
    activation: ("hidden_act", "silu"),
    tie_embeddings: false,
};

/// The sizes of a model whose layers are all alike.
pub(super) struct Sizes {
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) n_layers: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
}

/// A llama of these sizes: norms before each part, SiLU, no biases.
pub(super) fn plain(
    family: &'static Family,
    vocab_size: usize,
    sizes: &Sizes,
    eps: f32,
    rope: crate::model::config::RopeSettings,
) -> DecoderConfig {
    let norm = NormConfig { eps, offset: 0.0 };
    let layer = LayerConfig {
        attention: AttentionConfig {
            n_heads: sizes.n_heads,
            n_kv_heads: sizes.n_kv_heads,
            head_dim: sizes.head_dim,
            scale: None,
            window: None,
            score_cap: None,
            qkv_bias: false,
            fused_qkv: false,
            o_bias: false,
            qk_norm: QkNorm::None,
            rope,
        },
        mlp: MlpConfig {
            intermediate_size: sizes.intermediate_size,
            activation: Activation::Silu,
            fused_gate_up: false,
            bias: false,
        },
        norm,
        norm_placement: NormPlacement::Pre,
    };
    DecoderConfig {
        family,
        vocab_size,
        hidden_size: sizes.hidden_size,
        layers: vec![layer; sizes.n_layers],
        final_norm: norm,
        embedding_scale: None,
        logit_cap: None,
        tie_embeddings: false,
        max_positions: 0,
        sparse_attention: None,
        init_std: 0.02,
    }
}

/// Reads the fields that every family of transformers has; layers are all alike and as [`plain`] makes them.
pub(super) fn read(
    fields: &Fields<'_>,
    family: &'static Family,
    defaults: &Defaults,
) -> Result<DecoderConfig> {
    let hidden_size = fields.count_or("hidden_size", defaults.hidden_size)?;
    let n_heads = fields.count_or("num_attention_heads", defaults.n_heads)?;
    let n_kv_heads = kv_heads(fields, "num_key_value_heads", n_heads, defaults.n_kv_heads)?;
    let head_dim = match fields.count("head_dim")?.or(defaults.head_dim) {
        Some(head_dim) => head_dim,
        None => divided(fields, "hidden_size", hidden_size, n_heads)?,
    };
    let max_positions = fields.count_or("max_position_embeddings", defaults.max_positions)?;
    let vocab_size = fields.count_or("vocab_size", defaults.vocab_size)?;
    let sizes = Sizes {
        hidden_size,
        intermediate_size: fields.count_or("intermediate_size", (defaults.intermediate_size)(hidden_size))?,
        n_layers: layers(fields, "num_hidden_layers", defaults.n_layers)?,
        n_heads,
        n_kv_heads,
        head_dim,
    };
    let eps = fields.number_or("rms_norm_eps", defaults.norm_eps)? as f32;
    let rope = rope::read(fields, &defaults.rope, max_positions, RopeStyle::Half)?;
    let activation = activation(fields, defaults.activation)?;
    let config = DecoderConfig {
        tie_embeddings: fields.flag_or("tie_word_embeddings", defaults.tie_embeddings)?,
        max_positions,
        sparse_attention: None,
        init_std: fields.number_or("initializer_range", 0.02)? as f32,
        ..plain(family, vocab_size, &sizes, eps, rope)
    };
    Ok(config.with_layers(|layer| layer.mlp.activation = activation))
}

/// The number of layers under a name.
pub(super) fn layers(fields: &Fields<'_>, name: &str, default: usize) -> Result<usize> {
    match fields.count_or(name, default)? {
        n if n > MOST_LAYERS => {
            Err(fields.wrong(name, format!("supported are at most {MOST_LAYERS} layers")))
        }
        n => Ok(n),
    }
}

/// The heads of keys and values: as many as of queries where null is written, or nothing and there is no default.
pub(super) fn kv_heads(
    fields: &Fields<'_>,
    name: &str,
    n_heads: usize,
    default: Option<usize>,
) -> Result<usize> {
    Ok(match (fields.count(name)?, fields.has(name)) {
        (Some(n), _) => n,
        (None, true) => n_heads,
        (None, false) => default.unwrap_or(n_heads),
    })
}

/// The size of a head that is the hidden size divided by the heads.
pub(super) fn divided(fields: &Fields<'_>, name: &str, hidden_size: usize, n_heads: usize) -> Result<usize> {
    match n_heads > 0 && hidden_size.is_multiple_of(n_heads) {
        true => Ok(hidden_size / n_heads),
        false => Err(fields.wrong(name, format!("{hidden_size} cannot be divided among {n_heads} heads"))),
    }
}

/// What activations are called; the first name of each is written.
const ACTIVATIONS: [(&str, Activation); 6] = [
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu", Activation::Gelu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_new", Activation::GeluTanh),
    ("relu", Activation::Relu),
];

/// The activation under the name of a field, or the default.
pub(super) fn activation(fields: &Fields<'_>, (name, default): (&str, &str)) -> Result<Activation> {
    let written = fields.text(name)?.unwrap_or(default);
    match ACTIVATIONS.into_iter().find(|(known, _)| *known == written) {
        Some((_, activation)) => Ok(activation),
        None => Err(fields.wrong(name, "supported are silu, gelu, gelu_pytorch_tanh and relu")),
    }
}

/// Writes the activation under the name of a field.
pub(super) fn write_activation(name: &str, layer: &LayerConfig, fields: &mut FieldWriter) {
    if let Some((known, _)) = ACTIVATIONS.into_iter().find(|(_, known)| *known == layer.mlp.activation) {
        fields.set(name, json!(known));
    }
}

/// The sliding window, which null takes away.
pub(super) fn window(fields: &Fields<'_>, default: Option<usize>) -> Result<Option<usize>> {
    fields.written_or("sliding_window", default, Fields::count)
}

/// Refuses layers that see less than all positions before, where the family has no others.
pub(super) fn full_attention_only(fields: &Fields<'_>) -> Result<()> {
    let other =
        |kinds: &Value| kinds.as_array().is_some_and(|k| k.iter().any(|kind| kind != "full_attention"));
    match fields.value("layer_types").is_some_and(other) {
        true => Err(fields.wrong("layer_types", "supported is full_attention")),
        false => Ok(()),
    }
}

/// Which layers see a window alone, by `layer_types`, or by their index where nothing is written.
pub(super) fn windowed(
    fields: &Fields<'_>,
    n_layers: usize,
    by_index: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let Some(kinds) = fields.value("layer_types") else { return Ok((0..n_layers).map(by_index).collect()) };
    let kind = |kind: &Value| match kind.as_str() {
        Some("sliding_attention") => Some(true),
        Some("full_attention") => Some(false),
        _ => None,
    };
    let listed = kinds.as_array().and_then(|kinds| kinds.iter().map(kind).collect::<Option<Vec<_>>>());
    listed.filter(|listed| listed.len() == n_layers).ok_or_else(|| {
        fields.wrong("layer_types", "expected sliding_attention or full_attention for each layer")
    })
}

/// Writes which layers see a window, and how wide it is.
pub(super) fn write_windows(config: &DecoderConfig, fields: &mut FieldWriter) {
    let windows = config.layers.iter().map(|layer| layer.attention.window);
    if let Some(window) = windows.clone().flatten().next() {
        fields.set("sliding_window", json!(window));
    }
    let kind = |window: Option<usize>| match window {
        Some(_) => "sliding_attention",
        None => "full_attention",
    };
    fields.set("layer_types", windows.map(kind).collect());
}

/// Refuses settings that make a model that no decoder here computes, whatever its family.
pub(in crate::model) fn refuse_unsupported(fields: &Fields<'_>) -> Result<()> {
    // MiniMind writes the numbers of its experts also where it has none.
    if fields.flag_or("use_moe", false)? {
        return Err(fields.wrong("use_moe", "mixtures of experts are not supported, only dense models"));
    }
    if !fields.has("use_moe") {
        for name in ["num_experts", "num_local_experts", "n_routed_experts"] {
            if fields.count(name)?.is_some_and(|n| n > 0) {
                return Err(fields.wrong(name, "mixtures of experts are not supported, only dense models"));
            }
        }
    }
    for name in ["dropout", "attention_dropout", "resid_pdrop", "embd_pdrop"] {
        if fields.number(name)?.is_some_and(|p| p != 0.0) {
            return Err(fields.wrong(name, "dropout is not supported: set it to 0.0"));
        }
    }
    if fields.flag_or("use_bidirectional_attention", false)? {
        return Err(fields.wrong("use_bidirectional_attention", "only causal attention is supported"));
    }
    Ok(())
}

/// Writes the fields that every family of transformers has, but for head sizes, biases, windows, rotary settings, and
/// the activation, whose field has several names.
pub(super) fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    fields.set("hidden_size", json!(config.hidden_size));
    fields.set("intermediate_size", json!(layer.mlp.intermediate_size));
    fields.set("num_hidden_layers", json!(config.layers.len()));
    fields.set("num_attention_heads", json!(layer.attention.n_heads));
    fields.set("num_key_value_heads", json!(layer.attention.n_kv_heads));
    fields.set("max_position_embeddings", json!(config.max_positions));
    fields.set("rms_norm_eps", decimal(layer.norm.eps));
    fields.set("tie_word_embeddings", json!(config.tie_embeddings));
    fields.set("initializer_range", decimal(config.init_std));
}

/// Writes the size of a head where it is not the hidden size divided by the heads.
pub(super) fn write_unusual_head_dim(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    if layer.attention.q_dim() != config.hidden_size {
        fields.set("head_dim", json!(layer.attention.head_dim));
    }
}

/// Under transformers' own names.
pub(super) fn as_named(_config: &DecoderConfig, name: &str) -> String {
    name.to_owned()
}

/// A name whose part before its last word, such as `weight`, ends as one of `names` does, with the other ending.
pub(super) fn renamed(name: &str, names: &[(&str, &str)]) -> Option<String> {
    let (module, leaf) = name.rsplit_once('.')?;
    let prefix = |ours: &str| module.strip_suffix(ours).filter(|rest| rest.is_empty() || rest.ends_with('.'));
    names.iter().find_map(|(ours, theirs)| Some(format!("{}{theirs}.{leaf}", prefix(ours)?)))
}
