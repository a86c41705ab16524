//! A layer of a decoder, composed from its description: attention and a gated MLP with their norms.
//!
//! Shape legend: B batch, S sequence, E hidden, H heads, G kv heads, D head size.

use std::sync::Arc;

use oarlock_engine::nn::{Module, RmsNorm, Visitor, in_scope, is_trained};
use oarlock_engine::parallel::sequence_parallel::SequenceParallel;
use oarlock_tensor::ops::{self, Activation, AttentionOptions, BlockMask, CachedKv, Mask, QkvHeads, Rope};
use oarlock_tensor::{DType, Result, Tensor};

use super::cache::LayerCache;
use super::config::{
    AttentionConfig, DecoderConfig, LayerConfig, MlpConfig, NormConfig, NormPlacement, QkNorm,
};
use super::projection::{MapLinear, Projection, Projections};
use super::recompute::Parts;
use super::rope::RopeTables;

/// One layer: attention and a gated MLP, each normed and added to its input. Cloning gives other handles to the same
/// parameters.
#[derive(Clone, Debug)]
pub struct Block {
    /// What transformers calls the layer's class.
    class: &'static str,
    attention_norms: Norms,
    self_attn: Attention,
    mlp_norms: Norms,
    mlp: Mlp,
}

/// The norms around a part of a layer.
#[derive(Clone, Debug)]
struct Norms {
    /// On what goes in.
    before: Option<RmsNorm>,
    /// On what comes out.
    after: Option<RmsNorm>,
}

#[derive(Clone, Debug)]
struct Attention {
    qkv: Projections<3>,
    o_proj: Projection,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    config: AttentionConfig,
    blocks: Option<BlockMask>,
    /// The ranks that divide sequences, and of the blocks those of this rank's heads.
    sequence: Option<(SequenceParallel, Option<BlockMask>)>,
}

#[derive(Clone, Debug)]
struct Mlp {
    gate_up: Projections<2>,
    down_proj: Projection,
    activation: Activation,
}

/// A norm of a width.
pub(super) fn norm(dim: usize, config: NormConfig) -> Result<RmsNorm> {
    RmsNorm::with_offset(dim, config.eps, config.offset)
}

impl Block {
    pub(super) fn new(
        config: &DecoderConfig,
        layer: &LayerConfig,
        blocks: Option<BlockMask>,
    ) -> Result<Block> {
        let (hidden, std) = (config.hidden_size, config.init_std);
        Ok(Block {
            class: config.family.layer_class,
            attention_norms: Norms::new(hidden, layer.norm, layer.norm_placement)?,
            self_attn: Attention::new(hidden, std, &layer.attention, layer.norm, blocks)?,
            mlp_norms: Norms::new(hidden, layer.norm, layer.norm_placement)?,
            mlp: Mlp::new(hidden, std, &layer.mlp)?,
        })
    }

    /// As [`Decoder::map_linears`](super::Decoder::map_linears), for this block at `path`.
    pub(super) fn map_linears(&mut self, path: &str, f: MapLinear<'_>) -> Result<()> {
        let (attn, mlp) = (&mut self.self_attn, &mut self.mlp);
        let (attn_path, mlp_path) = (format!("{path}.self_attn"), format!("{path}.mlp"));
        attn.qkv.map(&attn_path, f)?;
        attn.o_proj.map(&format!("{attn_path}.o_proj"), f)?;
        mlp.gate_up.map(&mlp_path, f)?;
        mlp.down_proj.map(&format!("{mlp_path}.down_proj"), f)
    }

    /// As [`Decoder::set_sequence_parallel`](super::Decoder::set_sequence_parallel), for this block.
    pub(super) fn set_sequence_parallel(&mut self, sequence: &SequenceParallel) -> Result<()> {
        self.self_attn.set_sequence_parallel(sequence)
    }

    /// The residual stream x is f32; the block computes in the dtype of its weights.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        rope: &Arc<Rope>,
        mask: &Mask,
        recompute: Parts,
    ) -> Result<Tensor> {
        // The last product of a part stays outside: its backward pass needs its input, not its output.
        let attended = if recompute.attention {
            let (block, rope, mask) = (self.clone(), rope.clone(), mask.clone());
            let forward = move |x: &Tensor| block.attended(x, &rope, &mask);
            ops::checkpoint_without_output(x, is_trained(self)?, Arc::new(forward))?
        } else {
            self.attended(x, rope, mask)?
        };
        let part = self.self_attn.project_out(&attended)?;
        let (h, activated) = if recompute.mlp {
            let (h, block) = (self.attention_norms.add(x, part)?, self.clone());
            let forward = move |h: &Tensor| block.activated(h);
            let activated = ops::checkpoint_without_output(&h, is_trained(self)?, Arc::new(forward))?;
            (h, activated)
        } else {
            self.add_and_activate(x, part)?
        };
        self.mlp_norms.add(&h, self.mlp.project_down(&activated)?)
    }

    pub(super) fn forward_cached(
        &self,
        x: &Tensor,
        rope: &Arc<Rope>,
        cache: &mut LayerCache,
    ) -> Result<Tensor> {
        let normed = self.attention_norms.enter(x, self.mlp.dtype()?)?;
        let attended = self.self_attn.attend_cached(&normed, rope, cache)?;
        let (h, activated) = self.add_and_activate(x, self.self_attn.o_proj.forward(&attended)?)?;
        self.mlp_norms.add(&h, self.mlp.down_proj.forward(&activated)?)
    }

    /// As [`Block::forward_cached`], for the next positions of several sequences: x `[B, 1, E]` and a cache of each with how many
    /// rows in a row are its. Rows behind those only make the rows more.
    pub(super) fn forward_cached_each(
        &self,
        x: &Tensor,
        ropes: &RopeTables,
        caches: &mut [(&mut LayerCache, usize)],
    ) -> Result<Tensor> {
        let normed = self.attention_norms.enter(x, self.mlp.dtype()?)?;
        let attended = self.self_attn.attend_cached_each(&normed, ropes, caches)?;
        let (h, activated) = self.add_and_activate(x, self.self_attn.o_proj.forward(&attended)?)?;
        self.mlp_norms.add(&h, self.mlp.down_proj.forward(&activated)?)
    }

    /// Attention up to its output projection.
    fn attended(&self, x: &Tensor, rope: &Arc<Rope>, mask: &Mask) -> Result<Tensor> {
        self.self_attn.attend(&self.attention_norms.enter(x, self.mlp.dtype()?)?, rope, mask)
    }

    /// The stream with what attention has computed, and the MLP of that up to its down projection.
    fn add_and_activate(&self, x: &Tensor, part: Tensor) -> Result<(Tensor, Tensor)> {
        let dtype = self.mlp.dtype()?;
        let (h, normed) = match &self.mlp_norms.before {
            Some(norm) => norm.add_and_forward_to(x, &self.attention_norms.leave(part)?, dtype)?,
            None => {
                let h = self.attention_norms.add(x, part)?;
                (h.clone(), self.mlp_norms.enter(&h, dtype)?)
            }
        };
        Ok((h, self.mlp.activate(&normed)?))
    }

    /// The MLP up to its down projection.
    fn activated(&self, h: &Tensor) -> Result<Tensor> {
        self.mlp.activate(&self.mlp_norms.enter(h, self.mlp.dtype()?)?)
    }
}

impl Norms {
    fn new(hidden: usize, config: NormConfig, placement: NormPlacement) -> Result<Norms> {
        let new = |is_there: bool| is_there.then(|| norm(hidden, config)).transpose();
        Ok(Norms { before: new(placement.is_pre())?, after: new(placement.is_post())? })
    }

    /// What a part computes with: the stream in `dtype`, normed where norms stand before parts.
    fn enter(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        match &self.before {
            Some(norm) => norm.forward_to(x, dtype),
            None if x.dtype() == dtype => Ok(x.clone()),
            None => x.cast(dtype),
        }
    }

    /// What a part has computed as it is added to the stream: normed where norms stand behind parts.
    fn leave(&self, part: Tensor) -> Result<Tensor> {
        match &self.after {
            Some(norm) => norm.forward(&part),
            None => Ok(part),
        }
    }

    /// The stream with what a part has computed.
    fn add(&self, x: &Tensor, part: Tensor) -> Result<Tensor> {
        ops::add_residual(x, &self.leave(part)?)
    }
}

impl Attention {
    fn new(
        hidden: usize,
        std: f32,
        config: &AttentionConfig,
        norms: NormConfig,
        blocks: Option<BlockMask>,
    ) -> Result<Attention> {
        let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
        let parts = [("q_proj", q_dim), ("k_proj", kv_dim), ("v_proj", kv_dim)];
        let fused = config.fused_qkv.then_some("qkv_proj");
        let qk_norm = |dim: usize| {
            Ok(match config.qk_norm {
                QkNorm::None => None,
                QkNorm::PerHead => Some(norm(config.head_dim, norms)?),
                QkNorm::WholeProjection => Some(norm(dim, norms)?),
            })
        };
        Ok(Attention {
            qkv: Projections::normal(hidden, parts, fused, config.qkv_bias, std)?,
            o_proj: Projection::normal(q_dim, hidden, config.o_bias, std)?,
            q_norm: qk_norm(q_dim)?,
            k_norm: qk_norm(kv_dim)?,
            config: config.clone(),
            blocks,
            sequence: None,
        })
    }

    fn set_sequence_parallel(&mut self, sequence: &SequenceParallel) -> Result<()> {
        let of_heads = |blocks: &BlockMask| sequence.blocks_of_heads(blocks, self.config.n_heads);
        let blocks = self.blocks.as_ref().map(of_heads).transpose()?;
        self.sequence = Some((sequence.clone(), blocks));
        Ok(())
    }

    fn options(&self) -> AttentionOptions {
        self.config.options(self.blocks.clone())
    }

    fn attend(&self, x: &Tensor, rope: &Arc<Rope>, mask: &Mask) -> Result<Tensor> {
        in_scope(self, x.device(), || {
            if let Some((sequence, blocks)) = &self.sequence {
                // The tokens of this rank come after those of the ranks before it.
                let first = sequence.rank() * x.sizes().get(1).copied().unwrap_or(0);
                let (q, k, v) = self.project(x, rope, first)?;
                let [q, k, v] = sequence.scatter_heads([&q, &k, &v])?;
                let o = ops::attention(&q, &k, &v, mask, &self.config.options(blocks.clone()))?;
                return ops::merge_heads(&sequence.gather_heads(&o)?);
            }
            if self.config.qk_norm == QkNorm::None
                && let Some(qkv) = self.qkv.forward_fused(x)?
            {
                let AttentionConfig { n_heads: heads, n_kv_heads: kv_heads, head_dim, .. } = self.config;
                let heads = QkvHeads { heads, kv_heads, head_dim };
                return ops::merge_heads(&ops::attention_fused(&qkv, heads, rope, 0, mask, &self.options())?);
            }
            let (q, k, v) = self.project(x, rope, 0)?;
            ops::merge_heads(&ops::attention(&q, &k, &v, mask, &self.options())?)
        })
    }

    fn project_out(&self, attended: &Tensor) -> Result<Tensor> {
        in_scope(self, attended.device(), || self.o_proj.forward(attended))
    }

    fn attend_cached(&self, x: &Tensor, rope: &Arc<Rope>, cache: &mut LayerCache) -> Result<Tensor> {
        let (q, k, v) = self.project(x, rope, cache.len())?;
        cache.append(&k, &v)?;
        let options = self.options();
        ops::merge_heads(&ops::attention_in_pages(&q, &cache.filled(), &options)?)
    }

    /// The projections of all sequences together, the attention of each over its own cache.
    fn attend_cached_each(
        &self,
        x: &Tensor,
        ropes: &RopeTables,
        caches: &mut [(&mut LayerCache, usize)],
    ) -> Result<Tensor> {
        let (q, k, v) = self.heads(x)?;
        let options = self.options();
        let mut places = Vec::new();
        for (cache, n) in caches.iter() {
            places.extend((cache.len()..cache.len() + n).map(|position| (position, cache.n_prompt())));
        }
        let (end, n_rows) = (places.len(), q.sizes().first().copied().unwrap_or(0));
        // Rows without a sequence may stand anywhere.
        places.resize(n_rows.max(end), (0, 0));
        let (q, k) = (ropes.turn_each(&q, &places)?, ropes.turn_each(&k, &places)?);
        let mut first = 0;
        for (cache, n) in caches.iter_mut() {
            cache.append_rows(&k, &v, first, *n)?;
            first += *n;
        }
        let filled: Vec<(CachedKv<'_>, usize)> =
            caches.iter().map(|(cache, n)| (cache.filled(), *n)).collect();
        let attended = ops::attention_cached_each(&ops::narrow(&q, 0, 0..end)?, &filled, &options)?;
        match end == n_rows {
            true => ops::merge_heads(&attended),
            // Rows without a sequence: whatever is in them.
            false => ops::merge_heads(&ops::concat(&[attended, ops::narrow(&q, 0, end..n_rows)?], 0)?),
        }
    }

    /// x `[B, S, E]` → q `[B, S, H, D]`, k and v `[B, S, G, D]`, q and k turned to their positions.
    fn project(&self, x: &Tensor, rope: &Arc<Rope>, first: usize) -> Result<(Tensor, Tensor, Tensor)> {
        let (q, k, v) = self.heads(x)?;
        Ok((ops::rope(&q, rope, first)?, ops::rope(&k, rope, first)?, v))
    }

    /// x `[B, S, E]` → q `[B, S, H, D]`, k and v `[B, S, G, D]`, not turned.
    fn heads(&self, x: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
        let split = |x: Tensor| ops::split_heads(&x, self.config.head_dim);
        let normed = |x: Tensor, norm: &Option<RmsNorm>| match norm {
            None => split(x),
            Some(norm) if self.config.qk_norm == QkNorm::WholeProjection => split(norm.forward(&x)?),
            Some(norm) => norm.forward(&split(x)?),
        };
        let [q, k, v] = self.qkv.forward(x)?;
        Ok((normed(q, &self.q_norm)?, normed(k, &self.k_norm)?, split(v)?))
    }
}

impl Mlp {
    fn new(hidden: usize, std: f32, config: &MlpConfig) -> Result<Mlp> {
        let width = config.intermediate_size;
        let parts = [("gate_proj", width), ("up_proj", width)];
        let fused = config.fused_gate_up.then_some("gate_up_proj");
        Ok(Mlp {
            gate_up: Projections::normal(hidden, parts, fused, config.bias, std)?,
            down_proj: Projection::normal(width, hidden, config.bias, std)?,
            activation: config.activation,
        })
    }

    /// What the weights, and so the activations, are held in.
    fn dtype(&self) -> Result<DType> {
        self.gate_up.dtype()
    }

    fn activate(&self, x: &Tensor) -> Result<Tensor> {
        in_scope(self, x.device(), || {
            if let Some(gate_up) = self.gate_up.forward_fused(x)? {
                return ops::gated_fused(&gate_up, self.activation);
            }
            let [gate, up] = self.gate_up.forward(x)?;
            ops::gated(&gate, &up, self.activation)
        })
    }

    fn project_down(&self, activated: &Tensor) -> Result<Tensor> {
        in_scope(self, activated.device(), || self.down_proj.forward(activated))
    }
}

/// Shows a norm that a model may do without.
fn show(visitor: &mut dyn Visitor, name: &str, norm: &Option<RmsNorm>) {
    if let Some(norm) = norm {
        visitor.child(name, norm);
    }
}

impl Module for Block {
    /// Names are those of transformers' llama, and GLM-4's where norms stand on both sides; a family whose files say
    /// otherwise renames.
    fn visit(&self, visitor: &mut dyn Visitor) {
        show(visitor, "input_layernorm", &self.attention_norms.before);
        visitor.child("self_attn", &self.self_attn);
        show(visitor, "post_self_attn_layernorm", &self.attention_norms.after);
        show(visitor, "post_attention_layernorm", &self.mlp_norms.before);
        visitor.child("mlp", &self.mlp);
        show(visitor, "post_mlp_layernorm", &self.mlp_norms.after);
    }

    /// As the class is called in Python, where people write its name into FSDP's settings.
    fn kind(&self) -> &'static str {
        self.class
    }
}

impl Module for Attention {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.qkv.visit(visitor);
        visitor.child("o_proj", self.o_proj.module());
        show(visitor, "q_norm", &self.q_norm);
        show(visitor, "k_norm", &self.k_norm);
    }
}

impl Module for Mlp {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.gate_up.visit(visitor);
        visitor.child("down_proj", self.down_proj.module());
    }
}
