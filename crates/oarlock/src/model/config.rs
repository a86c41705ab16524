//! The settings of a decoder, checked as a whole.

use oarlock_tensor::RopeScaling;
use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::ops::Rope;

use crate::error::{Error, Result};

/// The families whose folders can be read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Llama 2, Llama 3, and MiniMind exported as llama.
    Llama,
    /// Qwen2 and Qwen2.5: biases on q, k and v.
    Qwen2,
    /// Qwen3: norms on the heads of q and k.
    Qwen3,
    /// MiniMind's own class, newest (head norms) or seed era (rotary on neighbouring channels).
    Minimind,
}

/// What makes a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Whose names and files it uses.
    pub family: Family,
    /// Token ids.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; a divisor of `n_heads`.
    pub n_kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// The longest sequence.
    pub max_positions: usize,
    /// Added to mean squares in norms.
    pub norm_eps: f32,
    /// Whether the output weights are the embedding's.
    pub tie_embeddings: bool,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// A bias on the attention's output.
    pub o_bias: bool,
    /// Biases in the MLP.
    pub mlp_bias: bool,
    /// RMSNorm on each head of q and k.
    pub qk_norm: bool,
    /// Rotary embedding.
    pub rope: RopeSettings,
    /// Standard deviation of fresh weights.
    pub init_std: f32,
}

/// The rotary embedding of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSettings {
    /// The base of the wave lengths.
    pub theta: f64,
    /// Which channels pair up.
    pub style: RopeStyle,
    /// How positions beyond the original length are treated.
    pub scaling: RopeScaling,
}

impl DecoderConfig {
    /// A llama of this size with heads of 64, as many for keys as for queries, and output weights of its own; what is
    /// to be otherwise is given with struct update syntax.
    pub fn llama(
        vocab_size: usize,
        hidden_size: usize,
        n_layers: usize,
        max_positions: usize,
    ) -> DecoderConfig {
        let n_heads = (hidden_size / 64).max(1);
        DecoderConfig {
            family: Family::Llama,
            vocab_size,
            hidden_size,
            intermediate_size: (hidden_size * 8 / 3).next_multiple_of(64),
            n_layers,
            n_heads,
            n_kv_heads: n_heads,
            head_dim: hidden_size / n_heads,
            max_positions,
            norm_eps: 1e-5,
            tie_embeddings: false,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
            rope: RopeSettings { theta: 10_000.0, style: RopeStyle::Half, scaling: RopeScaling::None },
            init_std: 0.02,
        }
    }

    /// Whether the settings fit together.
    ///
    /// # Errors
    /// [`Error::Model`] with all that is wrong.
    pub fn check(&self) -> Result<()> {
        let mut problems = Vec::new();
        for (name, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.n_layers),
            ("num_attention_heads", self.n_heads),
            ("num_key_value_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_positions),
        ] {
            if value == 0 || value > i32::MAX as usize {
                problems.push(format!("{name} is {value}"));
            }
        }
        if self.n_kv_heads > 0 && !self.n_heads.is_multiple_of(self.n_kv_heads) {
            problems.push(format!(
                "num_attention_heads ({}) is not a multiple of num_key_value_heads ({})",
                self.n_heads, self.n_kv_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            problems.push(format!("head_dim ({}) is odd, but rotary embedding turns pairs", self.head_dim));
        }
        if !(self.norm_eps > 0.0 && self.norm_eps.is_finite()) {
            problems.push(format!("rms_norm_eps is {}", self.norm_eps));
        }
        if !(self.rope.theta > 0.0 && self.rope.theta.is_finite()) {
            problems.push(format!("rope_theta is {}", self.rope.theta));
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Model(format!("the model's settings do not fit together: {}", problems.join("; "))))
    }

    /// The rotary embedding for sequences of up to `n_positions`.
    ///
    /// # Errors
    /// More positions than the model allows, or scaling settings that make no sense.
    pub fn rope(&self, n_positions: usize) -> Result<Rope> {
        if n_positions > self.max_positions {
            return Err(Error::Model(format!(
                "sequences of {n_positions} tokens are longer than the model allows (max_position_embeddings is {}); \
                 give a smaller cutoff_len",
                self.max_positions
            )));
        }
        let rope = &self.rope;
        Ok(Rope::new(rope.theta, self.head_dim, rope.style, rope.scaling, n_positions)?)
    }
}
