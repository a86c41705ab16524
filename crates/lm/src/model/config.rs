//! What a decoder is made of, layer by layer, checked as a whole.

use std::fmt::{self, Display};

use oarlock_engine::nn::SparsityConfig;
use oarlock_engine::{Error, Result};
use oarlock_tensor::RopeScaling;
use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::ops::{Activation, AttentionOptions, BlockMask};

use super::hf::fields::{FieldWriter, Fields};

/// The description of a decoder. The model is composed from it, and the loader, the estimate and the count of
/// operations read nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Whose names and files it uses.
    pub family: &'static Family,
    /// Token ids.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// The layers in order; they may differ from each other.
    pub layers: Vec<LayerConfig>,
    /// The norm before the output weights.
    pub final_norm: NormConfig,
    /// What embeddings are multiplied by, rounded to the dtype of the embedding; `None`: they stay.
    pub embedding_scale: Option<f32>,
    /// Logits become `cap · tanh(logits / cap)`.
    pub logit_cap: Option<f32>,
    /// Which blocks of its scores attention computes, in all layers; `None`: all of them.
    pub sparse_attention: Option<SparsityConfig>,
    /// Whether the output weights are the embedding's.
    pub tie_embeddings: bool,
    /// The longest sequence.
    pub max_positions: usize,
    /// Standard deviation of fresh weights.
    pub init_std: f32,
}

/// One layer: attention and an MLP, each with its norms, each added to its input.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// Attention.
    pub attention: AttentionConfig,
    /// The feed-forward part.
    pub mlp: MlpConfig,
    /// The kind of the layer's norms.
    pub norm: NormConfig,
    /// Where they stand.
    pub norm_placement: NormPlacement,
}

/// Causal self-attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; a divisor of `n_heads`.
    pub n_kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// What scores are multiplied by before the softmax; `None`: `1 / √head_dim`.
    pub scale: Option<f32>,
    /// A position sees itself and the `window - 1` positions before it; `None`: all before it.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(scores / cap)` before the softmax.
    pub score_cap: Option<f32>,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// Whether q, k and v are one layer, `qkv_proj`, with their outputs side by side.
    pub fused_qkv: bool,
    /// A bias on the output.
    pub o_bias: bool,
    /// RMSNorms on q and k.
    pub qk_norm: QkNorm,
    /// The rotary embedding.
    pub rope: RopeSettings,
}

/// The norms on queries and keys, before they are turned to their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Over each head, all heads with one weight `[head_dim]`.
    PerHead,
    /// Over all heads together, with weights `[n_heads · head_dim]` and `[n_kv_heads · head_dim]`.
    WholeProjection,
}

/// A gated MLP: `down(activation(gate(x)) · up(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpConfig {
    /// Its width.
    pub intermediate_size: usize,
    /// The activation of the gate.
    pub activation: Activation,
    /// Whether gate and up are one layer, `gate_up_proj`, with their outputs side by side.
    pub fused_gate_up: bool,
    /// Biases on all projections.
    pub bias: bool,
}

/// An RMSNorm: `x / √(mean(x²) + eps) · (offset + weight)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    /// Added to the mean square.
    pub eps: f32,
    /// Added to the weight: 0, or 1 where weights are stored around 0 (Gemma).
    pub offset: f32,
}

/// Where the norms of attention and of the MLP stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// On the input of each part.
    Pre,
    /// On the output of each part, before it is added to the stream.
    Post,
    /// On both ("sandwich").
    Both,
}

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSettings {
    /// The base of the wave lengths.
    pub theta: f64,
    /// Which channels pair up.
    pub style: RopeStyle,
    /// The share of a head's channels that turn, counted from the first: `partial_rotary_factor`.
    pub share: f64,
    /// How positions beyond the original length are treated.
    pub scaling: RopeScaling,
}

impl NormPlacement {
    /// Whether the input of each part is normed.
    pub fn is_pre(self) -> bool {
        self != NormPlacement::Post
    }

    /// Whether the output of each part is normed.
    pub fn is_post(self) -> bool {
        self != NormPlacement::Pre
    }
}

impl AttentionConfig {
    /// Channels of all query heads.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Channels of all key heads; there are as many of values.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// The channels of a head that turn.
    pub fn rotary_dim(&self) -> usize {
        (self.head_dim as f64 * self.rope.share) as usize
    }

    /// What scores are multiplied by.
    pub fn scale(&self) -> f32 {
        self.scale.unwrap_or_else(|| 1.0 / (self.head_dim as f32).sqrt())
    }

    pub(super) fn options(&self, blocks: Option<BlockMask>) -> AttentionOptions {
        AttentionOptions { scale: self.scale(), window: self.window, logit_cap: self.score_cap, blocks }
    }

    /// Twice the mean number of positions that a position of a sequence of `len` sees; `len` without a window. Sparse
    /// attention is not in it: see [`DecoderConfig::span`].
    pub fn span(&self, len: usize) -> u64 {
        let (len, window) = (len as u64, self.window.unwrap_or(len) as u64);
        if window >= len { len } else { window * (2 * len - window) / len }
    }
}

impl DecoderConfig {
    /// The most layers: each is described on its own.
    pub const MOST_LAYERS: usize = 1 << 12;
    /// The largest size of a matrix, in rows or columns.
    pub const MOST_SIZE: usize = i32::MAX as usize;

    /// The same with every layer changed.
    #[must_use]
    pub fn with_layers(mut self, change: impl FnMut(&mut LayerConfig)) -> DecoderConfig {
        self.layers.iter_mut().for_each(change);
        self
    }

    /// The layer that a parameter belongs to, by its name.
    pub fn layer_of(&self, parameter: &str) -> Option<&LayerConfig> {
        let (index, _) = parameter.strip_prefix("model.layers.")?.split_once('.')?;
        self.layers.get(index.parse::<usize>().ok()?)
    }

    /// The widest activation of a token.
    pub fn widest(&self) -> usize {
        let layers = self.layers.iter().map(|layer| layer.mlp.intermediate_size);
        layers.fold(self.vocab_size, usize::max)
    }

    /// The different rotary embeddings of the layers, each with the channels of a head that turn.
    pub fn rotary_kinds(&self) -> Vec<(&RopeSettings, usize)> {
        let mut kinds = Vec::new();
        for attention in self.layers.iter().map(|layer| &layer.attention) {
            let kind = (&attention.rope, attention.rotary_dim());
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// Channels of attention times the positions that they meet, summed over the layers, for one token of a sequence of
    /// `len`: what a count of operations adds to the parameters.
    pub fn attention_width(&self, len: usize) -> u64 {
        // Layers with equal heads and windows meet as many.
        let mut spans: Vec<((usize, Option<usize>), u64)> = Vec::new();
        let mut width = 0;
        for attention in self.layers.iter().map(|layer| &layer.attention) {
            let kind = (attention.n_heads, attention.window);
            let known = spans.iter().find(|(known, _)| *known == kind).map(|(_, span)| *span);
            let span = known.unwrap_or_else(|| self.span(attention, len));
            if known.is_none() {
                spans.push((kind, span));
            }
            width += span * attention.q_dim() as u64;
        }
        width
    }

    /// Twice the mean number of positions that a position of a sequence of `len` meets in a layer: `len` where attention is
    /// neither windowed nor sparse. A layout that cannot be made counts as whole.
    pub fn span(&self, attention: &AttentionConfig, len: usize) -> u64 {
        let whole = attention.span(len);
        let Some(sparsity) = &self.sparse_attention else { return whole };
        let Ok(blocks) = sparsity.layout(attention.n_heads, len) else { return whole };
        blocks.span(attention.n_heads, attention.window, len).min(whole)
    }

    /// The longest sequence of up to `n` that the model should write: dynamic rotary scaling is for any length. A sparse
    /// layout ends where it did in the run, however many positions there are.
    pub fn positions(&self, n: usize) -> usize {
        let is_dynamic =
            |(rope, _): &(&RopeSettings, usize)| matches!(rope.scaling, RopeScaling::Dynamic { .. });
        let kinds = self.rotary_kinds();
        match &self.sparse_attention {
            None if !kinds.is_empty() && kinds.iter().all(is_dynamic) => n,
            sparsity => {
                let layout = sparsity.as_ref().and_then(|sparsity| sparsity.max_seq_length);
                n.min(self.max_positions).min(layout.unwrap_or(usize::MAX))
            }
        }
    }

    /// Whether the settings fit together.
    ///
    /// # Errors
    /// [`Error::Model`] with all that is wrong.
    pub fn check(&self) -> Result<()> {
        let mut problems = Problems(Vec::new());
        problems.count("vocab_size", self.vocab_size);
        problems.count("hidden_size", self.hidden_size);
        self.layers.iter().for_each(|layer| problems.count("intermediate_size", layer.mlp.intermediate_size));
        problems.count("num_hidden_layers", self.layers.len());
        self.layers.iter().for_each(|layer| problems.heads(&layer.attention));
        problems.count("max_position_embeddings", self.max_positions);
        self.layers.iter().for_each(|layer| problems.shape_of_heads(&layer.attention));
        let norms = self.layers.iter().map(|layer| layer.norm).chain([self.final_norm]);
        norms.for_each(|norm| problems.positive("rms_norm_eps", norm.eps));
        for AttentionConfig { rope, scale, score_cap, .. } in self.layers.iter().map(|layer| &layer.attention)
        {
            problems.positive("rope_theta", rope.theta);
            scale.iter().for_each(|scale| problems.positive("the scale of attention", *scale));
            score_cap.iter().for_each(|cap| problems.positive("attn_logit_softcapping", *cap));
        }
        self.logit_cap.iter().for_each(|cap| problems.positive("final_logit_softcapping", *cap));
        if let Some(Err(problem)) = self.sparse_attention.as_ref().map(SparsityConfig::check) {
            problems.push(problem.to_string());
        }
        match problems.0.is_empty() {
            true => Ok(()),
            false => Err(Error::Model(format!(
                "the model's settings do not fit together: {}",
                problems.0.join("; ")
            ))),
        }
    }
}

/// The most channels of a head. No model has so many, and angles are computed for each before anything else.
const MOST_HEAD_DIM: usize = 1 << 16;

/// What is wrong, each once though several layers have it.
struct Problems(Vec<String>);

impl Problems {
    fn push(&mut self, problem: String) {
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }

    fn count(&mut self, name: &str, value: usize) {
        if value == 0 || value > DecoderConfig::MOST_SIZE {
            self.push(format!("{name} is {value}"));
        }
    }

    fn positive(&mut self, name: &str, value: impl Into<f64> + Display + Copy) {
        if !(value.into() > 0.0 && value.into().is_finite()) {
            self.push(format!("{name} is {value}"));
        }
    }

    fn heads(&mut self, attention: &AttentionConfig) {
        let AttentionConfig { n_heads, n_kv_heads, head_dim, .. } = *attention;
        self.count("num_attention_heads", n_heads);
        self.count("num_key_value_heads", n_kv_heads);
        self.count("head_dim", head_dim);
        if head_dim > MOST_HEAD_DIM {
            self.push(format!("head_dim is {head_dim}, and supported are at most {MOST_HEAD_DIM}"));
        }
    }

    fn shape_of_heads(&mut self, attention: &AttentionConfig) {
        let AttentionConfig { n_heads, n_kv_heads, head_dim, .. } = *attention;
        if n_kv_heads > 0 && !n_heads.is_multiple_of(n_kv_heads) {
            self.push(format!(
                "num_attention_heads ({n_heads}) is not a multiple of num_key_value_heads ({n_kv_heads})"
            ));
        }
        let share = attention.rope.share;
        if !(share > 0.0 && share <= 1.0) {
            self.push(format!("partial_rotary_factor is {share}"));
        } else if !head_dim.is_multiple_of(2) {
            self.push(format!("head_dim ({head_dim}) is odd, but rotary embedding turns pairs"));
        } else if !attention.rotary_dim().is_multiple_of(2) {
            self.push(format!(
                "partial_rotary_factor ({share}) turns {} channels of a head, but rotary embedding turns pairs",
                attention.rotary_dim()
            ));
        }
        if attention.window == Some(0) {
            self.push("sliding_window is 0".to_owned());
        }
    }
}

/// Reads a description from the fields of a `config.json`.
pub(super) type Read = fn(&Fields<'_>) -> Result<DecoderConfig>;

/// A family of models: how its folders are read and written.
pub struct Family {
    /// Its `model_type`.
    pub model_type: &'static str,
    /// Its class in transformers: the default of `architectures`.
    pub class: &'static str,
    /// The class of its layers, which people name in FSDP's settings.
    pub layer_class: &'static str,
    /// `bos_token_id` where nothing is written.
    pub bos: Option<u32>,
    /// `eos_token_id` where nothing is written.
    pub eos: &'static [u32],
    /// `pad_token_id` where nothing is written.
    pub pad: Option<u32>,
    /// Reads the settings of a folder.
    pub(super) read: Read,
    /// Writes the settings that the description has; the layer is the first.
    pub(super) write: fn(&DecoderConfig, &LayerConfig, &mut FieldWriter),
    /// What the files call a parameter.
    pub(super) stored: fn(&DecoderConfig, &str) -> String,
    /// What a new model of this kind can be called, and how its settings are read.
    pub(super) fresh: &'static [(&'static str, Read)],
}

impl Family {
    pub(super) fn read(&self, fields: &Fields<'_>) -> Result<DecoderConfig> {
        (self.read)(fields)
    }

    pub(super) fn write(&self, config: &DecoderConfig, fields: &mut FieldWriter) {
        if let Some(layer) = config.layers.first() {
            (self.write)(config, layer, fields);
        }
    }

    pub(super) fn stored(&self, config: &DecoderConfig, name: &str) -> String {
        (self.stored)(config, name)
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        self.model_type == other.model_type
    }
}
