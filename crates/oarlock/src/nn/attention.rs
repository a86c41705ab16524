//! Multi-head self-attention under torch's names.
//!
//! Shape legend: B batch, S sequence, E width, H heads, D head size.

use std::sync::Arc;

use oarlock_tensor::ops::{self, Mask, Rope, WeightLayout};
use oarlock_tensor::{Error, Init, Param, Result, Shape, Tensor};

use super::layers::in_dtype_of;
use crate::nn::{Forward, Latency, Linear, Module, Visitor};

/// Self-attention with as many heads for keys and values as for queries: `torch.nn.MultiheadAttention` with
/// `batch_first=True`, without dropout on the attention weights, which are never formed.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    /// Queries, keys and values one below the other: `[3·E, E]`.
    pub in_proj_weight: Param,
    /// `[3·E]`.
    pub in_proj_bias: Option<Param>,
    /// `[E, E]`.
    pub out_proj: Linear,
    n_heads: usize,
    mask: Mask,
    rope: Option<Arc<Rope>>,
    latency: Latency,
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
        let bound = (6.0 / (4 * dim).max(1) as f32).sqrt();
        Ok(MultiHeadAttention {
            in_proj_weight: Param::new(Shape::new(&[3 * dim, dim])?, Init::Uniform { bound }),
            in_proj_bias: Some(Param::new(Shape::new(&[3 * dim])?, Init::Zeros)),
            out_proj: Linear::new(dim, dim)?.bias_init(Init::Zeros),
            n_heads,
            mask: Mask::Full,
            rope: None,
            latency: Latency::default(),
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
        self.latency.time(|| {
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
            let part =
                |index: usize| ops::split_heads(&qkv.narrow(2, index * dim..(index + 1) * dim)?, head_dim);
            let turned = |x: Tensor| match &self.rope {
                Some(rope) => ops::rope(&x, rope, 0),
                None => Ok(x),
            };
            let (q, k, v) = (turned(part(0)?)?, turned(part(1)?)?, part(2)?);
            let attended = ops::attention(&q, &k, &v, mask, 1.0 / (head_dim as f32).sqrt())?;
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

    fn latency(&self) -> Option<&Latency> {
        Some(&self.latency)
    }
}

impl Forward<Tensor> for MultiHeadAttention {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward(x)
    }
}
