//! Multi-head self-attention under torch's names.
//!
//! Shape legend: B batch, S sequence, E width, H heads, K heads of keys and values, D head size.

use std::sync::Arc;

use oarlock_tensor::ops::{self, Mask, Rope, WeightLayout};
use oarlock_tensor::{Error, Init, Param, Result, Shape, Tensor};

use super::layers::in_dtype_of;
use crate::nn::{Linear, Module, Visitor, in_scope};

/// Self-attention: `torch.nn.MultiheadAttention` with `batch_first=True`, without dropout on the attention weights, which
/// are never formed. Several heads of queries can share one of keys and values ([`MultiHeadAttention::kv_heads`]).
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
    rope: Option<Arc<Rope>>,
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
            rope: None,
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

    /// Turns queries and keys by their positions (Su et al. 2021).
    #[must_use]
    pub fn rotary(self, rope: Arc<Rope>) -> MultiHeadAttention {
        MultiHeadAttention { rope: Some(rope), ..self }
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
            let turned = |x: Tensor| match &self.rope {
                Some(rope) => ops::rope(&x, rope, 0),
                None => Ok(x),
            };
            let (q, k) = (turned(part(0, dim)?)?, turned(part(dim, kv_dim)?)?);
            let v = part(dim + kv_dim, kv_dim)?;
            let attended = ops::attention(
                &q,
                &k,
                &v,
                mask,
                &ops::AttentionOptions::new(1.0 / (head_dim as f32).sqrt()),
            )?;
            self.out_proj.forward(&ops::merge_heads(&attended)?)
        })
    }
}

impl Module for MultiHeadAttention {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("in_proj_weight", &self.in_proj_weight);
        if let Some(bias) = &self.in_proj_bias {
            visitor.param("in_proj_bias", bias);
        }
        visitor.child("out_proj", &self.out_proj);
    }
}

/// As torch starts it: Xavier-uniform (Glorot and Bengio 2010) over the whole matrix.
fn in_proj(dim: usize, n_out: usize) -> Result<Param> {
    let bound = (6.0 / (dim + n_out).max(1) as f32).sqrt();
    Ok(Param::new(Shape::new(&[n_out, dim])?, Init::Uniform { bound }))
}
