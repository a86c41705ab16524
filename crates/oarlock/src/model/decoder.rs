//! The decoder: one transformer for all dense families (llama, qwen2, qwen3, minimind), which differ in its settings.
//!
//! Shape legend: B batch, S sequence, E hidden, H heads, G kv heads, D head size, F intermediate, V vocabulary.

use std::sync::Arc;

use oarlock_tensor::ops::{self, HeadLoss, HeadOptions, Labels, Mask, Rope};
use oarlock_tensor::{DType, Result, Tensor};

use crate::model::cache::LayerCache;
use crate::model::config::{DecoderConfig, Family};
use crate::model::recompute::{Parts, Recompute};
use crate::nn::{Embedding, Latency, Linear, Module, RmsNorm, Unit, Visitor, is_trained};

/// A decoder-only language model.
#[derive(Debug)]
pub struct Decoder {
    body: Body,
    head: Unit<Head>,
    latency: Latency,
}

/// A decoder without its output: the embedding and the layers.
#[derive(Debug)]
pub(super) struct Body {
    config: DecoderConfig,
    embed_tokens: Unit<Embedding>,
    layers: Vec<Unit<Block>>,
    rope: Arc<Rope>,
    parts: Parts,
}

/// One layer: attention and a gated MLP, each after a norm and added to its input. Cloning gives other handles to the
/// same parameters.
#[derive(Clone, Debug)]
pub struct Block {
    family: Family,
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

#[derive(Clone, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    head_dim: usize,
    latency: Latency,
}

#[derive(Clone, Debug)]
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    latency: Latency,
}

/// The final norm and the output weights; those may be the embedding's.
#[derive(Debug)]
pub struct Head {
    norm: RmsNorm,
    lm_head: Linear,
}

impl Decoder {
    /// A model with these settings for sequences of up to `n_positions`, its parameters without a home yet.
    ///
    /// # Errors
    /// Settings that do not fit together, or more positions than the model allows.
    pub fn new(config: DecoderConfig, n_positions: usize) -> crate::Result<Decoder> {
        let body = Body::new(config, n_positions)?;
        let config = &body.config;
        let lm_head = match config.tie_embeddings {
            true => Linear::with_weight(body.embed_tokens.module().weight.clone()),
            false => Linear::normal(config.hidden_size, config.vocab_size, false, config.init_std)?,
        };
        let head = Head { norm: RmsNorm::new(config.hidden_size, config.norm_eps)?, lm_head };
        Ok(Decoder { body, head: Unit::new(head), latency: Latency::default() })
    }

    /// Says which activations the backward pass computes again; a new model keeps all of them. Losses, gradients and
    /// weights are the same for every choice, bit by bit.
    pub fn set_recompute(&mut self, recompute: Recompute) {
        self.body.set_recompute(recompute);
    }

    /// Its settings.
    pub fn config(&self) -> &DecoderConfig {
        &self.body.config
    }

    /// ids `[B, S]`, labels `[B, S]` (shifted already, -100 ignored) → the summed cross-entropy.
    ///
    /// # Errors
    /// A token outside the vocabulary, or a sequence longer than the model's.
    pub fn loss(&self, ids: &Tensor, labels: &Tensor, mask: &Mask) -> Result<HeadLoss> {
        self.latency.time(|| {
            let labels = Labels::from_tensor(labels)?;
            let x = self.body.hidden(ids, mask)?;
            self.head.run(&x, |head| head.loss(&x, &labels))
        })
    }

    /// ids `[B, S]` → logits `[B, S, V]`.
    ///
    /// # Errors
    /// As [`Decoder::loss`].
    pub fn logits(&self, ids: &Tensor, mask: &Mask) -> Result<Tensor> {
        let x = self.body.hidden(ids, mask)?;
        self.head.run(&x, |head| head.lm_head.forward(&head.normed(&x)?))
    }

    /// The next tokens' logits `[1, V]` after `ids` `[1, S]`, which follow what `cache` holds; the cache grows by them.
    ///
    /// # Errors
    /// As [`Decoder::loss`], or a full cache.
    pub fn next_logits(&self, ids: &Tensor, cache: &mut [LayerCache]) -> Result<Tensor> {
        let mut x = self.body.embed_tokens.module().forward_f32(ids)?;
        for (layer, cache) in self.body.layers.iter().zip(cache) {
            x = layer.module().forward_cached(&x, &self.body.rope, cache)?;
        }
        let x = self.head.module().normed(&ops::last_position(&x)?)?;
        self.head.module().lm_head.forward(&x)
    }
}

impl Body {
    pub(super) fn new(config: DecoderConfig, n_positions: usize) -> crate::Result<Body> {
        config.check()?;
        let layers: Result<Vec<_>> =
            (0..config.n_layers).map(|_| Ok(Unit::new(Block::new(&config)?))).collect();
        Ok(Body {
            embed_tokens: Unit::new(Embedding::normal(
                config.vocab_size,
                config.hidden_size,
                config.init_std,
            )?),
            layers: layers?,
            rope: Arc::new(config.rope(n_positions)?),
            config,
            parts: Parts::default(),
        })
    }

    pub(super) fn config(&self) -> &DecoderConfig {
        &self.config
    }

    pub(super) fn set_recompute(&mut self, recompute: Recompute) {
        self.parts = recompute.parts();
        for (index, layer) in self.layers.iter().enumerate() {
            layer.unit_run().set_recompute(recompute.whole_unit(index));
        }
    }

    /// ids `[B, S]` → the residual stream after the last layer, `[B, S, E]` in f32.
    pub(super) fn hidden(&self, ids: &Tensor, mask: &Mask) -> Result<Tensor> {
        let mut x = self.embed_tokens.run(ids, |embed| embed.forward_f32(ids))?;
        for layer in &self.layers {
            let (rope, mask, parts) = (self.rope.clone(), mask.clone(), self.parts);
            x = layer.call(&x, move |block, x| block.forward(x, &rope, &mask, parts))?;
        }
        Ok(x)
    }
}

impl Block {
    fn new(config: &DecoderConfig) -> Result<Block> {
        let (hidden, std) = (config.hidden_size, config.init_std);
        let (q_dim, kv_dim) = (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
        let head_norm = || config.qk_norm.then(|| RmsNorm::new(config.head_dim, config.norm_eps)).transpose();
        let self_attn = Attention {
            q_proj: Linear::normal(hidden, q_dim, config.qkv_bias, std)?,
            k_proj: Linear::normal(hidden, kv_dim, config.qkv_bias, std)?,
            v_proj: Linear::normal(hidden, kv_dim, config.qkv_bias, std)?,
            o_proj: Linear::normal(q_dim, hidden, config.o_bias, std)?,
            q_norm: head_norm()?,
            k_norm: head_norm()?,
            head_dim: config.head_dim,
            latency: Latency::default(),
        };
        let mlp = Mlp {
            gate_proj: Linear::normal(hidden, config.intermediate_size, config.mlp_bias, std)?,
            up_proj: Linear::normal(hidden, config.intermediate_size, config.mlp_bias, std)?,
            down_proj: Linear::normal(config.intermediate_size, hidden, config.mlp_bias, std)?,
            latency: Latency::default(),
        };
        Ok(Block {
            family: config.family,
            input_layernorm: RmsNorm::new(hidden, config.norm_eps)?,
            self_attn,
            post_attention_layernorm: RmsNorm::new(hidden, config.norm_eps)?,
            mlp,
        })
    }

    /// The residual stream x is f32; the block computes in the dtype of its weights.
    fn forward(&self, x: &Tensor, rope: &Arc<Rope>, mask: &Mask, recompute: Parts) -> Result<Tensor> {
        // The last product of a part stays outside: its backward pass needs its input, not its output.
        let attended = if recompute.attention {
            let (block, rope, mask) = (self.clone(), rope.clone(), mask.clone());
            let forward = move |x: &Tensor| block.attended(x, &rope, &mask);
            ops::checkpoint_without_output(x, is_trained(self)?, Arc::new(forward))?
        } else {
            self.attended(x, rope, mask)?
        };
        let h = ops::add_residual(x, &self.self_attn.project_out(&attended)?)?;
        let activated = if recompute.mlp {
            let block = self.clone();
            let forward = move |h: &Tensor| block.activated(h);
            ops::checkpoint_without_output(&h, is_trained(self)?, Arc::new(forward))?
        } else {
            self.activated(&h)?
        };
        ops::add_residual(&h, &self.mlp.project_down(&activated)?)
    }

    fn forward_cached(&self, x: &Tensor, rope: &Arc<Rope>, cache: &mut LayerCache) -> Result<Tensor> {
        let normed = self.input_layernorm.forward_to(x, self.mlp.dtype()?)?;
        let attended = self.self_attn.attend_cached(&normed, rope, cache)?;
        let h = ops::add_residual(x, &self.self_attn.o_proj.forward(&attended)?)?;
        ops::add_residual(&h, &self.mlp.down_proj.forward(&self.activated(&h)?)?)
    }

    /// Attention up to its output projection.
    fn attended(&self, x: &Tensor, rope: &Arc<Rope>, mask: &Mask) -> Result<Tensor> {
        self.self_attn.attend(&self.input_layernorm.forward_to(x, self.mlp.dtype()?)?, rope, mask)
    }

    /// The MLP up to its down projection.
    fn activated(&self, h: &Tensor) -> Result<Tensor> {
        self.mlp.activate(&self.post_attention_layernorm.forward_to(h, self.mlp.dtype()?)?)
    }
}

impl Attention {
    fn attend(&self, x: &Tensor, rope: &Arc<Rope>, mask: &Mask) -> Result<Tensor> {
        self.latency.time(|| {
            let (q, k, v) = self.project(x, rope, 0)?;
            ops::merge_heads(&ops::attention(&q, &k, &v, mask, &self.options())?)
        })
    }

    fn project_out(&self, attended: &Tensor) -> Result<Tensor> {
        self.latency.time(|| self.o_proj.forward(attended))
    }

    fn attend_cached(&self, x: &Tensor, rope: &Arc<Rope>, cache: &mut LayerCache) -> Result<Tensor> {
        let (q, k, v) = self.project(x, rope, cache.len())?;
        cache.append(&k, &v)?;
        ops::merge_heads(&ops::attention_cached(
            &q,
            cache.keys(),
            cache.values(),
            cache.len(),
            &self.options(),
        )?)
    }

    /// x `[B, S, E]` → q `[B, S, H, D]`, k and v `[B, S, G, D]`, q and k turned to their positions.
    fn project(&self, x: &Tensor, rope: &Arc<Rope>, first: usize) -> Result<(Tensor, Tensor, Tensor)> {
        let heads = |x: Tensor| ops::split_heads(&x, self.head_dim);
        let norm =
            |norm: &Option<RmsNorm>, x: Tensor| norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x));
        let q = norm(&self.q_norm, heads(self.q_proj.forward(x)?)?)?;
        let k = norm(&self.k_norm, heads(self.k_proj.forward(x)?)?)?;
        let v = heads(self.v_proj.forward(x)?)?;
        Ok((ops::rope(&q, rope, first)?, ops::rope(&k, rope, first)?, v))
    }

    fn options(&self) -> ops::AttentionOptions {
        ops::AttentionOptions::new(1.0 / (self.head_dim as f32).sqrt())
    }
}

impl Mlp {
    /// What the weights, and so the activations, are held in.
    fn dtype(&self) -> Result<DType> {
        Ok(self.gate_proj.weight.weight()?.dtype())
    }

    fn activate(&self, x: &Tensor) -> Result<Tensor> {
        self.latency.time(|| {
            ops::gated(&self.gate_proj.forward(x)?, &self.up_proj.forward(x)?, ops::Activation::Silu)
        })
    }

    fn project_down(&self, activated: &Tensor) -> Result<Tensor> {
        self.latency.time(|| self.down_proj.forward(activated))
    }
}

impl Head {
    /// The product with the output weights, and the loss in the same pass.
    fn loss(&self, x: &Tensor, labels: &Labels) -> Result<HeadLoss> {
        let normed = self.normed(x)?;
        self.lm_head
            .latency
            .time(|| ops::head_loss(&normed, &self.lm_head.weight, labels, HeadOptions::default()))
    }

    /// The residual stream after the last norm, in the dtype of the output weights.
    fn normed(&self, x: &Tensor) -> Result<Tensor> {
        let dtype = self.lm_head.weight.weight()?.dtype();
        self.norm.forward_to(x, dtype)
    }
}

impl Module for Body {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("model.embed_tokens", &self.embed_tokens);
        visitor.child("model.layers", &self.layers);
    }
}

impl Module for Decoder {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.body.visit(visitor);
        visitor.child("", &self.head);
    }

    fn hidden_size(&self) -> Option<usize> {
        Some(self.config().hidden_size)
    }

    fn latency(&self) -> Option<&Latency> {
        Some(&self.latency)
    }
}

impl Module for Block {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("input_layernorm", &self.input_layernorm);
        visitor.child("self_attn", &self.self_attn);
        visitor.child("post_attention_layernorm", &self.post_attention_layernorm);
        visitor.child("mlp", &self.mlp);
    }

    /// As the class is called in Python, where people write its name into FSDP's settings.
    fn kind(&self) -> &'static str {
        match self.family {
            Family::Llama => "LlamaDecoderLayer",
            Family::Qwen2 => "Qwen2DecoderLayer",
            Family::Qwen3 => "Qwen3DecoderLayer",
            Family::Minimind => "MiniMindBlock",
        }
    }
}

impl Module for Attention {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("q_proj", &self.q_proj);
        visitor.child("k_proj", &self.k_proj);
        visitor.child("v_proj", &self.v_proj);
        visitor.child("o_proj", &self.o_proj);
        for (name, norm) in [("q_norm", &self.q_norm), ("k_norm", &self.k_norm)] {
            if let Some(norm) = norm {
                visitor.child(name, norm);
            }
        }
    }

    fn latency(&self) -> Option<&Latency> {
        Some(&self.latency)
    }
}

impl Module for Mlp {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("gate_proj", &self.gate_proj);
        visitor.child("up_proj", &self.up_proj);
        visitor.child("down_proj", &self.down_proj);
    }

    fn latency(&self) -> Option<&Latency> {
        Some(&self.latency)
    }
}

impl Module for Head {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("model.norm", &self.norm);
        visitor.child("lm_head", &self.lm_head);
    }
}
