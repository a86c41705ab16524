//! The models whose training is timed, and whose matrix products and attention are tuned.

use oarlock::model::{Decoder, DecoderConfig};
use oarlock_cuda::attention::AttentionShape;
use oarlock_tensor::DType;
use serde_json::{Value, json};

/// Sizes of a decoder, and of a step of its training.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub name: &'static str,
    vocab: usize,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    qkv_bias: bool,
    /// Tokens of a step.
    tokens: usize,
    pub seq: usize,
}

/// Of all: weights and activations.
pub(super) const DTYPE: DType = DType::BF16;

const MINIMIND_26M: Shape = Shape {
    name: "MiniMind 26M",
    vocab: 6400,
    hidden: 512,
    intermediate: 1408,
    layers: 8,
    heads: 8,
    kv_heads: 2,
    head_dim: 64,
    qkv_bias: false,
    tokens: 32_768,
    seq: 1024,
};
const MINIMIND_104M: Shape = Shape {
    name: "MiniMind 104M",
    hidden: 768,
    intermediate: 2048,
    layers: 16,
    head_dim: 96,
    tokens: 16_384,
    ..MINIMIND_26M
};
const QWEN_0_5B: Shape = Shape {
    name: "Qwen2.5 0.5B",
    vocab: 151_936,
    hidden: 896,
    intermediate: 4864,
    layers: 24,
    heads: 14,
    kv_heads: 2,
    head_dim: 64,
    qkv_bias: true,
    tokens: 8192,
    seq: 1024,
};
const QWEN_1_5B: Shape = Shape {
    name: "Qwen2.5 1.5B",
    hidden: 1536,
    intermediate: 8960,
    layers: 28,
    heads: 12,
    head_dim: 128,
    ..QWEN_0_5B
};
/// Of a quick check: it shows that the measurement works, and nothing of speed.
const TINY: Shape = Shape {
    name: "tiny",
    vocab: 256,
    hidden: 64,
    intermediate: 192,
    layers: 2,
    heads: 2,
    kv_heads: 1,
    head_dim: 32,
    qkv_bias: true,
    tokens: 16,
    seq: 8,
};

/// All, those first whose comparison says most.
pub(super) fn all(quick: bool) -> Vec<Shape> {
    if quick {
        return vec![TINY];
    }
    let long = |shape: Shape| Shape { seq: 4096, ..shape };
    let models = [MINIMIND_104M, QWEN_0_5B, QWEN_1_5B, MINIMIND_26M];
    models.into_iter().chain(models.map(long)).collect()
}

impl Shape {
    /// Model and length.
    pub fn title(&self) -> String {
        format!("{}, {}x{}", self.name, self.rows(), self.seq)
    }

    /// Sequences of a step.
    pub fn rows(&self) -> usize {
        (self.tokens / self.seq).max(1)
    }

    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The model, with random weights.
    pub fn model(&self) -> oarlock::Result<Decoder> {
        let config = DecoderConfig {
            tie_embeddings: true,
            ..DecoderConfig::llama(self.vocab, self.hidden, self.layers, self.seq)
        };
        let config = config.with_layers(|layer| {
            let attention = &mut layer.attention;
            (attention.n_heads, attention.n_kv_heads) = (self.heads, self.kv_heads);
            (attention.head_dim, attention.qkv_bias) = (self.head_dim, self.qkv_bias);
            layer.mlp.intermediate_size = self.intermediate;
        });
        Decoder::new(config, self.seq)
    }

    /// The attention of one of its layers.
    pub fn attention(&self) -> AttentionShape {
        AttentionShape {
            batch: self.rows(),
            q_len: self.seq,
            kv_len: self.seq,
            kv_capacity: self.seq,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: (1.0 / self.head_dim as f32).sqrt(),
            causal: true,
            window: None,
            logit_cap: None,
        }
    }

    /// For the run beside it.
    pub fn job(&self) -> Value {
        json!({
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "attention_bias": self.qkv_bias,
            "rows": self.rows(),
            "seq": self.seq,
        })
    }
}
