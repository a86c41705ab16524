//! Multi-head attention under torch's names.
//!
//! Shape legend: B batch, S sequence, E width, H heads, K heads of keys and values, D head size.

mod scores;

use std::ops::Range;
use std::sync::Arc;

use oarlock_tensor::ops::{self, BlockMask, Mask, Rope, Transposed, WeightLayout};
use oarlock_tensor::{Error, Init, Param, Result, Shape, Tensor};

pub use self::scores::AttentionMasks;
use super::dropout::Dropout;
use super::layers::Linear;
use super::layers::in_dtype_of;
use super::module::{Module, Visitor};
use super::scope::in_scope;

/// `torch.nn.MultiheadAttention` with `batch_first=True`. The attention weights are formed only where masks of elements
/// or dropout need them. Several heads of queries can share one of keys and values ([`MultiHeadAttention::kv_heads`]).
///
/// ```
/// use oarlock::nn::{self, AttentionMasks, Module, MultiHeadAttention};
/// use oarlock::Tensor;
///
/// #[derive(Module)]
/// struct CrossAttention {
///     attn: MultiHeadAttention,
/// }
///
/// impl CrossAttention {
///     fn new() -> nn::Result<CrossAttention> {
///         Ok(CrossAttention { attn: MultiHeadAttention::new(64, 4)?.dropout(0.1) })
///     }
///
///     /// `padding` is not 0 where `memory` is padding.
///     fn forward(&self, x: &Tensor, memory: &Tensor, padding: &Tensor) -> nn::Result<Tensor> {
///         let masks = AttentionMasks { key_padding_mask: Some(padding), ..AttentionMasks::default() };
///         self.attn.attend(x, memory, memory, &masks)
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    /// Queries, keys and values one below the other: `[E + 2·K·D, E]`, which is `[3·E, E]` where K = H.
    pub in_proj_weight: Param,
    /// `[E + 2·K·D]`.
    pub in_proj_bias: Option<Param>,
    /// `[E, E]`.
    pub out_proj: Linear,
    n_heads: usize,
    n_kv_heads: usize,
    mask: Mask,
    blocks: Option<BlockMask>,
    rope: Option<Arc<Rope>>,
    dropout: Option<Dropout>,
}

impl MultiHeadAttention {
    /// Every position sees all. Starts as in torch: the weight of queries, keys and values uniform up to
    /// √(6 / (E + 3·E)), that of the output as a [`Linear`]'s, biases at zero.
    ///
    /// # Errors
    /// A width that the heads do not divide.
    pub fn new(dim: usize, n_heads: usize) -> Result<MultiHeadAttention> {
        if n_heads == 0 || !dim.is_multiple_of(n_heads) {
            return Err(Error::Usage(format!(
                "MultiHeadAttention: a width of {dim} cannot be divided into {n_heads} heads"
            )));
        }
        Ok(MultiHeadAttention {
            in_proj_weight: in_proj(dim, 3 * dim)?,
            in_proj_bias: Some(Param::new(Shape::new(&[3 * dim])?, Init::Zeros)),
            out_proj: Linear::new(dim, dim)?.bias_init(Init::Zeros),
            n_heads,
            n_kv_heads: n_heads,
            mask: Mask::Full,
            blocks: None,
            rope: None,
            dropout: None,
        })
    }

    /// With `n` heads of keys and values, each for as many heads of queries (Ainslie et al. 2023); 1 is multi-query
    /// attention. The weight is a new one.
    ///
    /// # Errors
    /// A number that does not divide the heads.
    pub fn kv_heads(self, n: usize) -> Result<MultiHeadAttention> {
        if n == 0 || !self.n_heads.is_multiple_of(n) {
            return Err(Error::Usage(format!(
                "MultiHeadAttention: {} heads cannot share {n} heads of keys and values equally",
                self.n_heads
            )));
        }
        let dim = self.in_proj_weight.shape().sizes()[1];
        let n_out = dim + 2 * n * (dim / self.n_heads);
        let bias = |_| -> Result<Param> { Ok(Param::new(Shape::new(&[n_out])?, Init::Zeros)) };
        Ok(MultiHeadAttention {
            in_proj_weight: in_proj(dim, n_out)?,
            in_proj_bias: self.in_proj_bias.as_ref().map(bias).transpose()?,
            n_kv_heads: n,
            ..self
        })
    }

    /// Each position sees itself and those before it.
    #[must_use]
    pub fn causal(self) -> MultiHeadAttention {
        MultiHeadAttention { mask: Mask::Causal, ..self }
    }

    /// Each position sees the keys of some blocks alone, and no time is spent on others: a layout of
    /// [`SparsityConfig`](crate::nn::SparsityConfig), or a mask of one's own. Where masks of elements or dropout need the
    /// attention weights, those are formed and hidden.
    #[must_use]
    pub fn sparse(self, blocks: BlockMask) -> MultiHeadAttention {
        MultiHeadAttention { blocks: Some(blocks), ..self }
    }

    /// Turns queries and keys by their positions (Su et al. 2021).
    #[must_use]
    pub fn rotary(self, rope: Arc<Rope>) -> MultiHeadAttention {
        MultiHeadAttention { rope: Some(rope), ..self }
    }

    /// Drops attention weights with probability `p` while the model trains: torch's `dropout`.
    #[must_use]
    pub fn dropout(self, p: f32) -> MultiHeadAttention {
        MultiHeadAttention { dropout: (p != 0.0).then(|| Dropout::new(p)), ..self }
    }

    /// Without biases: torch's `bias=False`.
    #[must_use]
    pub fn no_bias(self) -> MultiHeadAttention {
        MultiHeadAttention { in_proj_bias: None, out_proj: self.out_proj.no_bias(), ..self }
    }

    /// x `[B, S, E]` → `[B, S, E]`.
    ///
    /// # Errors
    /// Shapes that do not fit, or more positions than the rotary table has.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_masked(x, &self.mask)
    }

    /// As [`MultiHeadAttention::forward`], with the mask of this batch: [`Mask::Documents`] keeps packed documents
    /// apart.
    ///
    /// # Errors
    /// As [`MultiHeadAttention::forward`], or a mask that does not fit.
    pub fn forward_masked(&self, x: &Tensor, mask: &Mask) -> Result<Tensor> {
        in_scope(self, x.device(), || {
            let &[_, _, dim] = x.sizes() else {
                return Err(Error::Shape {
                    op: "MultiHeadAttention",
                    expected: "x of shape [B, S, E]".to_owned(),
                    got: format!("{:?}", x.shape()),
                });
            };
            let x = in_dtype_of(&self.in_proj_weight, x)?;
            let layout = WeightLayout::OutIn;
            let qkv = ops::linear(&x, &self.in_proj_weight, self.in_proj_bias.as_ref(), layout)?;
            let head_dim = dim / self.n_heads;
            let kv_dim = self.n_kv_heads * head_dim;
            let part =
                |from: usize, width: usize| ops::split_heads(&qkv.narrow(2, from..from + width)?, head_dim);
            let (q, k) = (self.turned(part(0, dim)?)?, self.turned(part(dim, kv_dim)?)?);
            let v = part(dim + kv_dim, kv_dim)?;
            self.finish([&q, &k, &v], mask, &AttentionMasks::default())
        })
    }

    /// Queries from one sequence `[B, S, E]`, keys and values from another `[B, K, E]` → `[B, S, E]`. The mask of the
    /// layer applies as well; with a causal one the queries are the last positions of the keys.
    ///
    /// # Errors
    /// Shapes that do not fit, or more positions than the rotary table has.
    pub fn attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: &AttentionMasks<'_>,
    ) -> Result<Tensor> {
        in_scope(self, query.device(), || {
            let dim = self.in_proj_weight.shape().sizes()[1];
            let kv_dim = self.n_kv_heads * (dim / self.n_heads);
            let q = self.turned(self.projected(query, 0..dim)?)?;
            let k = self.turned(self.projected(key, dim..dim + kv_dim)?)?;
            let v = self.projected(value, dim + kv_dim..dim + 2 * kv_dim)?;
            self.finish([&q, &k, &v], &self.mask, masks)
        })
    }

    /// The heads that some rows of the weight make of x: `[B, S, E]` → `[B, S, heads, D]`.
    fn projected(&self, x: &Tensor, rows: Range<usize>) -> Result<Tensor> {
        let dim = self.in_proj_weight.shape().sizes()[1];
        if !matches!(x.sizes(), [_, _, width] if *width == dim) {
            return Err(Error::Shape {
                op: "MultiHeadAttention",
                expected: format!("queries, keys and values of shape [B, S, {dim}]"),
                got: format!("{:?}", x.shape()),
            });
        }
        let x = in_dtype_of(&self.in_proj_weight, x)?;
        let weight = ops::parameter(&self.in_proj_weight, &x)?.narrow(0, rows.clone())?;
        let mut y = ops::matmul_transposed(&x, &weight, Transposed::Right)?;
        if let Some(bias) = &self.in_proj_bias {
            y = y.add(&ops::parameter(bias, &x)?.narrow(0, rows)?)?;
        }
        ops::split_heads(&y, dim / self.n_heads)
    }

    fn turned(&self, x: Tensor) -> Result<Tensor> {
        match &self.rope {
            Some(rope) => ops::rope(&x, rope, 0),
            None => Ok(x),
        }
    }

    /// Attention and the projection of what it gives.
    fn finish(&self, [q, k, v]: [&Tensor; 3], mask: &Mask, masks: &AttentionMasks<'_>) -> Result<Tensor> {
        let scale = 1.0 / (q.shape().last() as f32).sqrt();
        let dropout = self.dropout.as_ref().filter(|dropout| dropout.is_active());
        let attended = if masks.is_empty() && dropout.is_none() {
            let options =
                ops::AttentionOptions { blocks: self.blocks.clone(), ..ops::AttentionOptions::new(scale) };
            ops::attention(q, k, v, mask, &options)?
        } else {
            scores::attend([q, k, v], (mask, self.blocks.as_ref()), masks, scale, dropout)?
        };
        self.out_proj.forward(&ops::merge_heads(&attended)?)
    }
}

impl Module for MultiHeadAttention {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("in_proj_weight", &self.in_proj_weight);
        if let Some(bias) = &self.in_proj_bias {
            visitor.param("in_proj_bias", bias);
        }
        visitor.child("out_proj", &self.out_proj);
        if let Some(dropout) = &self.dropout {
            dropout.visit(visitor);
        }
    }
}

/// As torch starts it: Xavier-uniform (Glorot and Bengio 2010) over the whole matrix.
fn in_proj(dim: usize, n_out: usize) -> Result<Param> {
    let bound = (6.0 / (dim + n_out).max(1) as f32).sqrt();
    Ok(Param::new(Shape::new(&[n_out, dim])?, Init::Uniform { bound }))
}
