//! The decoder: the embedding, the layers and the head, composed from a [`DecoderConfig`].
//!
//! Shape legend: B batch, S sequence, E hidden, V vocabulary.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use half::{bf16, f16};
use oarlock_engine::nn::{Layer, Linear, Module, StoredNames, Unit, in_scope, parameters};
use oarlock_engine::parallel::sequence_parallel::{self, SequenceParallel};
use oarlock_tensor::cpu::gemm::FEW_ROWS;
use oarlock_tensor::ops::{self, HeadLoss, Labels, Mask, TokenLoss};
use oarlock_tensor::{DType, Device, Error, Result, Tensor};

use super::block::{Block, norm};
use super::cache::LayerCache;
use super::config::{DecoderConfig, LayerConfig};
use super::embedding::TokenEmbedding;
use super::head::Head;
use super::projection::{MapLinear, Projection};
use super::recompute::{Parts, Recompute, is_whole_unit};
use super::rope::{RopeTables, Turning, longest_sequence};
use super::value_head::ValueHead;

/// A decoder-only language model.
#[derive(Debug, Module)]
pub struct Decoder {
    #[module(name = "")]
    pub(super) body: Body,
    #[module(name = "")]
    pub(super) head: Unit<Head>,
}

/// A decoder without its output: the embedding and the layers.
#[derive(Debug, Module)]
pub(super) struct Body {
    #[module(skip)]
    config: DecoderConfig,
    #[module(name = "")]
    stored_names: StoredNames,
    #[module(name = "model.embed_tokens")]
    pub(super) embed_tokens: Unit<TokenEmbedding>,
    #[module(name = "model.layers")]
    pub(super) layers: Vec<Unit<Block>>,
    /// Of each layer; layers with equal settings share a table.
    #[module(skip)]
    pub(super) ropes: Vec<RopeTables>,
    #[module(skip)]
    parts: Parts,
    /// The ranks that a sequence is divided over.
    #[module(skip)]
    n_parts: usize,
    /// The longest sequence.
    #[module(skip)]
    n_positions: usize,
}

/// What [`Decoder::loss_with`] computes beside the cross-entropy.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossOptions<'a> {
    /// The loss of each token.
    pub kind: TokenLoss,
    /// Noise that is added to the embeddings of the tokens `[B, S, E]`, in f32.
    pub noise: Option<&'a Tensor>,
}

impl Decoder {
    /// A model with these settings for sequences of up to `n_positions`, its parameters without a home yet.
    ///
    /// # Errors
    /// Settings that do not fit together, or more positions than memory has room for.
    pub fn new(config: DecoderConfig, n_positions: usize) -> oarlock_engine::Result<Decoder> {
        Decoder::for_rows(config, n_positions, n_positions)
    }

    /// As [`Decoder::new`], for rows of up to `row_len` tokens that hold several sequences one after another
    /// ([`Mask::Documents`]), each of up to `n_positions`.
    ///
    /// # Errors
    /// As [`Decoder::new`].
    pub fn for_rows(
        config: DecoderConfig,
        n_positions: usize,
        row_len: usize,
    ) -> oarlock_engine::Result<Decoder> {
        let body = Body::new(config, n_positions, row_len)?;
        let config = &body.config;
        let lm_head = match config.tie_embeddings {
            true => Linear::with_weight(body.embed_tokens.module().weight().clone()),
            false => Linear::normal(config.hidden_size, config.vocab_size, false, config.init_std)?,
        };
        let norm = norm(config.hidden_size, config.final_norm)?;
        let head =
            Head { norm, lm_head: Projection::Linear(lm_head), logit_cap: config.logit_cap, value: None };
        Ok(Decoder { body, head: Unit::new(head) })
    }

    /// Says which activations the backward pass computes again; a new model keeps all of them. Losses, gradients and
    /// weights are the same for every choice, bit by bit.
    pub fn set_recompute(&mut self, recompute: Recompute) {
        self.body.set_recompute(recompute);
    }

    /// Whether so many ranks can divide each sequence, and the heads of every layer.
    ///
    /// # Errors
    /// Heads that they do not divide.
    pub(crate) fn check_sequence_parallel(&self, n_ranks: usize) -> oarlock_engine::Result<()> {
        let mut layers = self.body.config.layers.iter().map(|layer| &layer.attention);
        layers.try_for_each(|heads| sequence_parallel::check_heads(n_ranks, heads.n_heads, heads.n_kv_heads))
    }

    /// Divides sequences over the ranks of a group: from then on losses and logits are those of this rank's part of each
    /// row ([`Batch::keep_part`](crate::data::Batch::keep_part)), with [`Mask::Documents`] of whole rows. To be called before the model is
    /// prepared. Answers with a cache are not divided.
    ///
    /// # Errors
    /// Heads that the ranks do not divide, and a model that is in use.
    pub fn set_sequence_parallel(&mut self, sequence: &SequenceParallel) -> oarlock_engine::Result<()> {
        self.check_sequence_parallel(sequence.size())?;
        for layer in &mut self.body.layers {
            let block = layer.module_mut().ok_or_else(|| {
                Error::Usage(
                    "set_sequence_parallel: the model is in use; call it before `prepare`".to_owned(),
                )
            })?;
            block.set_sequence_parallel(sequence)?;
        }
        self.body.n_parts = sequence.size();
        Ok(())
    }

    /// Says whether what recomputed blocks keep waits in main memory between its passes, where the model is on a GPU.
    /// Nothing else changes.
    pub fn set_activation_offload(&mut self, offload: bool) {
        self.body.layers.iter().for_each(|layer| layer.unit_run().set_offload(offload));
    }

    /// Adds a value head behind this much dropout, which [`Decoder::values`] then computes. To be called before the model is
    /// prepared. Output weights that are not the embedding's are frozen: nothing of them is trained through values.
    ///
    /// # Errors
    /// A model that is in use.
    pub fn add_value_head(&mut self, dropout: f32) -> Result<()> {
        let (hidden_size, tied) = (self.body.config.hidden_size, self.body.config.tie_embeddings);
        let head = self.head.module_mut();
        let head = head.ok_or_else(|| {
            Error::Usage("add_value_head: the model is in use; call it before `prepare`".to_owned())
        })?;
        head.value = Some(ValueHead::new(hidden_size, dropout)?);
        if !tied {
            oarlock_engine::nn::freeze(head.lm_head.module());
        }
        Ok(())
    }

    pub(super) fn head(&self) -> &Unit<Head> {
        &self.head
    }

    pub(super) fn hidden(&self, ids: &Tensor, mask: &Mask) -> Result<Tensor> {
        self.body.hidden(ids, mask)
    }

    /// The positions of the longest sequence.
    pub fn n_positions(&self) -> usize {
        self.body.n_positions
    }

    /// Its settings.
    pub fn config(&self) -> &DecoderConfig {
        &self.body.config
    }

    /// ids `[B, S]` and a label for each of them (shifted already, -100 ignored) → the summed cross-entropy.
    ///
    /// # Errors
    /// A token outside the vocabulary, or a sequence longer than the model's.
    pub fn loss(&self, ids: &Tensor, labels: &Labels, mask: &Mask) -> Result<HeadLoss> {
        self.loss_with(ids, labels, mask, &LossOptions::default())
    }

    /// As [`Decoder::loss`], with another loss of each token or with noise on the embeddings.
    ///
    /// # Errors
    /// As [`Decoder::loss`]; a loss other than cross-entropy where the output weights were replaced
    /// ([`Decoder::map_lm_head`]).
    pub fn loss_with(
        &self,
        ids: &Tensor,
        labels: &Labels,
        mask: &Mask,
        options: &LossOptions<'_>,
    ) -> Result<HeadLoss> {
        in_scope(self, ids.device(), || {
            let x = self.body.hidden_with(ids, mask, options.noise, |_| ())?;
            self.head.run(&x, |head| head.loss(&x, labels, options.kind))
        })
    }

    /// As [`Decoder::loss_with`], with whether each label is the likeliest token (f32 `[B, S]`, 1 or 0).
    ///
    /// # Errors
    /// As [`Decoder::loss_with`].
    pub fn loss_and_hits(
        &self,
        ids: &Tensor,
        labels: &Labels,
        mask: &Mask,
        options: &LossOptions<'_>,
    ) -> Result<(HeadLoss, Tensor)> {
        in_scope(self, ids.device(), || {
            let x = self.body.hidden_with(ids, mask, options.noise, |_| ())?;
            self.head.run(&x, |head| Ok((head.loss(&x, labels, options.kind)?, head.hits(&x, labels)?)))
        })
    }

    /// The units of the model as a pipeline divides them: the embedding, each layer, the head.
    pub fn n_units(&self) -> usize {
        self.body.layers.len() + 2
    }

    /// The embedding and the layers among `units`, for a model that is divided into parts: from ids `[B, S]` where the
    /// embedding is among them, else from the residual stream `[B, S, E]`, to the residual stream in f32.
    ///
    /// # Errors
    /// As [`Decoder::loss`].
    pub fn stream_through(
        &self,
        units: Range<usize>,
        x: &Tensor,
        mask: &Mask,
        noise: Option<&Tensor>,
    ) -> Result<Tensor> {
        in_scope(self, x.device(), || self.body.stream_through(units, x, mask, noise))
    }

    /// As [`Decoder::loss_with`], from the residual stream `[B, S, E]` behind the last layer.
    ///
    /// # Errors
    /// As [`Decoder::loss_with`].
    pub fn loss_of_stream(&self, x: &Tensor, labels: &Labels, kind: TokenLoss) -> Result<HeadLoss> {
        in_scope(self, x.device(), || self.head.run(x, |head| head.loss(x, labels, kind)))
    }

    /// As [`Decoder::loss_and_hits`], from the residual stream `[B, S, E]` behind the last layer.
    ///
    /// # Errors
    /// As [`Decoder::loss_with`].
    pub fn loss_and_hits_of_stream(
        &self,
        x: &Tensor,
        labels: &Labels,
        kind: TokenLoss,
    ) -> Result<(HeadLoss, Tensor)> {
        in_scope(self, x.device(), || {
            self.head.run(x, |head| Ok((head.loss(x, labels, kind)?, head.hits(x, labels)?)))
        })
    }

    /// ids `[B, S]` → logits `[B, S, V]`.
    ///
    /// # Errors
    /// As [`Decoder::loss`].
    pub fn logits(&self, ids: &Tensor, mask: &Mask) -> Result<Tensor> {
        let x = self.body.hidden(ids, mask)?;
        self.head.run(&x, |head| head.logits(&x))
    }

    /// As [`Decoder::logits`], with the residual stream `[B, S, E]` before the first layer and after each: one tensor more
    /// than layers, the last of them after the final norm, as transformers' `output_hidden_states`.
    ///
    /// # Errors
    /// As [`Decoder::loss`].
    pub fn logits_and_hidden_states(&self, ids: &Tensor, mask: &Mask) -> Result<(Tensor, Vec<Tensor>)> {
        let mut states = Vec::new();
        let x = self.body.hidden_with(ids, mask, None, |x| states.push(x.clone()))?;
        let (logits, normed) = self.head.run(&x, |head| {
            let normed = head.normed(&x)?;
            Ok((head.logits_of(&normed)?, normed))
        })?;
        states.pop();
        states.push(normed);
        Ok((logits, states))
    }

    /// Puts other layers in the place of the linear layers of all blocks: adapters, other arithmetic. `f` gets each with
    /// its path, and returns what takes its place, or `None`. To be called before the model is prepared. The output
    /// weights stay; see [`Decoder::map_lm_head`].
    ///
    /// A layer that holds the former one under the name "" keeps the names of its parameters, so that weights are loaded
    /// and saved as before:
    ///
    /// ```
    /// use oarlock::model::{Decoder, DecoderConfig};
    /// use oarlock::nn::{self, Forward, Init, Layer, Linear, Module};
    /// use oarlock::Tensor;
    ///
    /// /// A linear layer with an update of low rank (Hu et al. 2021).
    /// #[derive(Module)]
    /// struct Lora {
    ///     #[module(name = "")]
    ///     base: Linear,
    ///     lora_a: Linear,
    ///     lora_b: Linear,
    /// }
    ///
    /// impl Lora {
    ///     fn around(base: &Linear, rank: usize) -> nn::Result<Lora> {
    ///         let &[n_out, n_in] = base.weight.shape().sizes() else { unreachable!("a weight has two dims") };
    ///         nn::freeze(base);
    ///         Ok(Lora {
    ///             base: base.clone(),
    ///             lora_a: Linear::new(n_in, rank)?.no_bias(),
    ///             lora_b: Linear::new(rank, n_out)?.no_bias().init(Init::Zeros),
    ///         })
    ///     }
    /// }
    ///
    /// impl Forward<Tensor> for Lora {
    ///     type Output = Tensor;
    ///     fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
    ///         self.base.forward(x)?.add(&self.lora_b.forward(&self.lora_a.forward(x)?)?)
    ///     }
    /// }
    ///
    /// fn adapt(config: DecoderConfig) -> oarlock::Result<Decoder> {
    ///     let mut model = Decoder::new(config, 512)?;
    ///     nn::freeze(&model);
    ///     model.map_linears(|path, linear| {
    ///         let chosen = path.ends_with("q_proj") || path.ends_with("v_proj");
    ///         Ok(if chosen { Some(Box::new(Lora::around(linear, 8)?) as Box<dyn Layer>) } else { None })
    ///     })?;
    ///     Ok(model)
    /// }
    /// ```
    ///
    /// # Errors
    /// What `f` reports, or a model that is in use already.
    pub fn map_linears(
        &mut self,
        mut f: impl FnMut(&str, &Linear) -> Result<Option<Box<dyn Layer>>>,
    ) -> Result<()> {
        self.body.map_linears(&mut f)
    }

    /// Puts what `f` makes of the output weights `lm_head` in their place. To be called before the model is prepared. The
    /// loss of such a model needs memory for the logits of all tokens; without it they are computed in chunks.
    ///
    /// Where the output weights are the embedding's ([`DecoderConfig::tie_embeddings`]), the layer holds the one that it
    /// replaces, and the weights stay shared. A model with an output layer of its own has `tie_embeddings: false`.
    ///
    /// # Errors
    /// What `f` reports, a layer without the embedding's weights where they are shared, and a model that is in use or
    /// whose output weights were replaced before.
    pub fn map_lm_head(&mut self, f: impl FnOnce(&Linear) -> Result<Box<dyn Layer>>) -> Result<()> {
        let usage = |message: &str| Error::Usage(format!("map_lm_head: {message}"));
        let tied = self.body.config.tie_embeddings;
        let head = self.head.module_mut();
        let head = head.ok_or_else(|| usage("the model is in use; call it before `prepare`"))?;
        let Projection::Linear(linear) = &head.lm_head else {
            return Err(usage("the output weights were replaced before"));
        };
        let layer = f(linear)?;
        let shared = linear.weight.id();
        if tied && parameters(&*layer).iter().all(|named| named.param.id() != shared) {
            return Err(usage(
                "the output weights are the embedding's, and the new layer does not hold them; let it hold the layer that it \
                 replaces, or build the model with `tie_embeddings: false`",
            ));
        }
        head.lm_head = Projection::Other(layer.into());
        Ok(())
    }

    /// An empty cache of keys and values for each layer, for one sequence of up to `capacity` positions.
    ///
    /// # Errors
    /// No memory.
    pub fn empty_cache(&self, capacity: usize, dtype: DType, device: &Device) -> Result<Vec<LayerCache>> {
        let attention = self.config().layers.iter().map(|layer| &layer.attention);
        attention.map(|a| LayerCache::new(capacity, a.n_kv_heads, a.head_dim, dtype, device)).collect()
    }

    /// The next tokens' logits `[1, V]` after `ids` `[1, S]`, which follow what `cache` holds; the cache grows by them.
    ///
    /// # Errors
    /// As [`Decoder::loss`], or a full cache.
    pub fn next_logits(&self, ids: &Tensor, cache: &mut [LayerCache]) -> Result<Tensor> {
        let x = ops::last_position(&self.hidden_behind(ids, cache)?)?;
        self.head.run(&x, |head| head.logits(&x))
    }

    /// The residual stream `[1, S, D]` of tokens that follow what the cache holds.
    fn hidden_behind(&self, ids: &Tensor, cache: &mut [LayerCache]) -> Result<Tensor> {
        let mut x = self.body.embed_tokens.run(ids, |embed| self.body.embed(embed, ids, None))?;
        for ((layer, ropes), cache) in self.body.layers.iter().zip(&self.body.ropes).zip(cache) {
            let rope = ropes.of_pass(cache, x.sizes().get(1).copied().unwrap_or(0))?;
            x = layer.run(&x, |block| block.forward_cached(&x, &rope, cache))?;
        }
        Ok(x)
    }

    /// As [`Decoder::next_logits`], bit by bit. `seen` is given the logits `[n, V]` behind each token as well, in parts of
    /// `n_rows` rows with the place of their first: all of them at a time would be large.
    pub(crate) fn logits_of_all<E: From<Error>>(
        &self,
        ids: &Tensor,
        cache: &mut [LayerCache],
        n_rows: usize,
        seen: &mut dyn FnMut(usize, &Tensor) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let x = self.hidden_behind(ids, cache)?;
        let n = ids.sizes().last().copied().unwrap_or(0);
        for begin in (0..n).step_by(n_rows.max(1)) {
            let part = ops::narrow(&x, 1, begin..n.min(begin + n_rows))?;
            let part = part.reshape([part.sizes()[1], part.shape().last()])?;
            seen(begin, &self.head.run(&part, |head| head.logits(&part))?)?;
        }
        let x = ops::last_position(&x)?;
        Ok(self.head.run(&x, |head| head.logits(&x))?)
    }
}

impl Decoder {
    /// The embedding and the head, to change them before the model is prepared; `None` while it is in use.
    pub(super) fn ends_mut(&mut self) -> Option<(&mut TokenEmbedding, &mut Head)> {
        self.body.embed_tokens.module_mut().zip(self.head.module_mut())
    }

    /// Products of so few rows have sums of another order on a CPU than larger ones, which have the same for any number.
    pub(crate) const FEW_ROWS: usize = FEW_ROWS;

    /// Bytes of keys and values of so many positions, of all layers.
    pub(crate) fn cache_bytes(&self, n_positions: usize, dtype: DType) -> usize {
        let attention = self.config().layers.iter().map(|layer| &layer.attention);
        attention.map(|a| 2 * n_positions * a.n_kv_heads * a.head_dim * dtype.size()).sum()
    }

    /// How the positions of a prompt of `len` tokens are turned.
    pub(crate) fn turning(&self, len: usize) -> Turning {
        self.body.ropes.iter().map(|ropes| ropes.turning(len)).fold(Turning::default(), Turning::and)
    }

    /// Whether a text that was read as one of `len` positions has to be read anew to become `longer`.
    pub(crate) fn turns_anew(&self, len: usize, longer: usize) -> bool {
        self.body.ropes.iter().any(|ropes| ropes.turn_anew(len, longer))
    }
}

impl Body {
    pub(super) fn new(
        config: DecoderConfig,
        n_positions: usize,
        row_len: usize,
    ) -> oarlock_engine::Result<Body> {
        config.check()?;
        let n = row_len.max(n_positions);
        let layout =
            |heads| config.sparse_attention.as_ref().map(|sparsity| sparsity.layout(heads, n)).transpose();
        // Layers with as many heads share their layout.
        let mut layouts = BTreeMap::new();
        for heads in config.layers.iter().map(|layer| layer.attention.n_heads) {
            if let Entry::Vacant(vacant) = layouts.entry(heads) {
                vacant.insert(layout(heads)?);
            }
        }
        let blocks = |layer: &LayerConfig| layouts.get(&layer.attention.n_heads).cloned().flatten();
        let block = |layer| Ok(Unit::new(Block::new(&config, layer, blocks(layer))?));
        let names = config.clone();
        Ok(Body {
            stored_names: StoredNames::new(move |name| names.family.stored(&names, name)),
            layers: config.layers.iter().map(block).collect::<Result<_>>()?,
            embed_tokens: Unit::new(TokenEmbedding::normal(
                config.vocab_size,
                config.hidden_size,
                config.init_std,
            )?),
            ropes: RopeTables::of_layers(&config, n_positions, row_len)?,
            config,
            parts: Parts::default(),
            n_parts: 1,
            n_positions,
        })
    }

    pub(super) fn config(&self) -> &DecoderConfig {
        &self.config
    }

    pub(super) fn set_recompute(&mut self, recompute: Recompute) {
        self.parts = recompute.into();
        for (index, layer) in self.layers.iter().enumerate() {
            layer.unit_run().set_recompute(is_whole_unit(recompute, index));
        }
    }

    fn map_linears(&mut self, f: MapLinear<'_>) -> Result<()> {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let Some(block) = layer.module_mut() else {
                return Err(Error::Usage(
                    "map_linears: the model is in use; call it before `prepare`".to_owned(),
                ));
            };
            block.map_linears(&format!("model.layers.{index}"), f)?;
        }
        Ok(())
    }

    /// ids `[B, S]` → the residual stream after the last layer, `[B, S, E]` in f32.
    pub(super) fn hidden(&self, ids: &Tensor, mask: &Mask) -> Result<Tensor> {
        self.hidden_with(ids, mask, None, |_| ())
    }

    /// As [`Body::hidden`], with noise on the embeddings; `see` is shown the stream before the first layer and after each.
    fn hidden_with(
        &self,
        ids: &Tensor,
        mask: &Mask,
        noise: Option<&Tensor>,
        mut see: impl FnMut(&Tensor),
    ) -> Result<Tensor> {
        let mut x = self.stream_through(0..1, ids, mask, noise)?;
        see(&x);
        for unit in 1..=self.layers.len() {
            x = self.stream_through(unit..unit + 1, &x, mask, None)?;
            see(&x);
        }
        Ok(x)
    }

    /// As [`Decoder::stream_through`].
    fn stream_through(
        &self,
        units: Range<usize>,
        x: &Tensor,
        mask: &Mask,
        noise: Option<&Tensor>,
    ) -> Result<Tensor> {
        // Of ids [B, S] and of the stream [B, S, E], which may be a part of each row.
        let n_positions = x.sizes().get(1).copied().unwrap_or(0) * self.n_parts;
        let longest = match self.ropes.iter().any(RopeTables::depend_on_length) {
            true => longest_sequence(mask, n_positions)?,
            false => n_positions,
        };
        let mut x = x.clone();
        for unit in units {
            let Some(index) = unit.checked_sub(1) else {
                x = self.embed_tokens.run(&x, |embed| self.embed(embed, &x, noise))?;
                continue;
            };
            // The head is not part of the stream.
            let (Some(layer), Some(ropes)) = (self.layers.get(index), self.ropes.get(index)) else { break };
            let (mask, parts) = (mask.clone(), self.parts);
            let rope = ropes.of(0..n_positions, longest)?;
            x = layer.call(&x, move |block, x| block.forward(x, &rope, &mask, parts))?;
        }
        Ok(x)
    }

    /// The beginning of the residual stream.
    pub(super) fn embed(
        &self,
        embed: &TokenEmbedding,
        ids: &Tensor,
        noise: Option<&Tensor>,
    ) -> Result<Tensor> {
        let mut x = embed.forward_f32(ids)?;
        if let Some(noise) = noise {
            x = x.add(noise)?;
        }
        let Some(scale) = self.config.embedding_scale else { return Ok(x) };
        x.scale(match embed.weight().weight()?.dtype() {
            DType::BF16 => bf16::from_f32(scale).to_f32(),
            DType::F16 => f16::from_f32(scale).to_f32(),
            DType::F32 | DType::I32 => scale,
        })
    }
}
