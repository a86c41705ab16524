//! The layers of a decoder: parameters with a forward pass, named as transformers names them.

use oarlock_tensor::ops::{self, WeightLayout};
use oarlock_tensor::{DType, Init, Param, Result, Shape, Tensor};

use crate::nn::{Latency, Module, Visitor};

/// y = x·Wᵀ + b, weight `[outputs, inputs]`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Param,
    /// `[outputs]`.
    pub bias: Option<Param>,
    /// Times the product, also where it is a part of another op.
    pub latency: Latency,
}

impl Linear {
    /// Starts normal with standard deviation `std`, the bias at zero.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn new(n_in: usize, n_out: usize, bias: bool, std: f32) -> Result<Linear> {
        let bias = bias.then(|| Shape::new(&[n_out])).transpose()?;
        Ok(Linear {
            weight: Param::new(Shape::new(&[n_out, n_in])?, Init::Normal { std }),
            bias: bias.map(|shape| Param::new(shape, Init::Zeros)),
            latency: Latency::default(),
        })
    }

    /// With a weight that another layer holds as well.
    pub fn with_weight(weight: Param) -> Linear {
        Linear { weight, bias: None, latency: Latency::default() }
    }

    /// x `[.., inputs]` → `[.., outputs]`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.latency.time(|| ops::linear(x, &self.weight, self.bias.as_ref(), WeightLayout::OutIn))
    }
}

impl Module for Linear {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor.param("bias", bias);
        }
    }

    fn latency(&self) -> Option<&Latency> {
        Some(&self.latency)
    }
}

/// Rows of a table `[vocabulary, dim]` by token id.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[vocabulary, dim]`.
    pub weight: Param,
    latency: Latency,
}

impl Embedding {
    /// Starts normal with standard deviation `std`.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn new(vocab: usize, dim: usize, std: f32) -> Result<Embedding> {
        let weight = Param::new(Shape::new(&[vocab, dim])?, Init::Normal { std });
        Ok(Embedding { weight, latency: Latency::default() })
    }

    /// ids `[..]` → `[.., dim]`.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.latency.time(|| ops::embedding(ids, &self.weight))
    }

    /// ids `[..]` → `[.., dim]` in f32: the start of a residual stream.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn forward_f32(&self, ids: &Tensor) -> Result<Tensor> {
        self.latency.time(|| ops::embedding_to(ids, &self.weight, DType::F32))
    }
}

impl Module for Embedding {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
    }

    fn latency(&self) -> Option<&Latency> {
        Some(&self.latency)
    }
}

/// RMSNorm over the last dim. Its weight stays f32 in every precision: near one, bf16 has steps of 1/128.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// `[dim]`.
    pub weight: Param,
    /// Added to the mean square.
    pub eps: f32,
    latency: Latency,
}

impl RmsNorm {
    /// Starts at one.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn new(dim: usize, eps: f32) -> Result<RmsNorm> {
        let weight = Param::in_f32(Shape::new(&[dim])?, Init::Ones);
        Ok(RmsNorm { weight, eps, latency: Latency::default() })
    }

    /// x `[.., dim]` → `[.., dim]`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.latency.time(|| ops::rms_norm(x, &self.weight, self.eps))
    }

    /// As [`RmsNorm::forward`], with the output in `dtype`: from an f32 residual stream to what a block computes in.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit.
    pub fn forward_to(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        self.latency.time(|| ops::rms_norm_to(x, &self.weight, self.eps, dtype))
    }
}

impl Module for RmsNorm {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
    }

    fn latency(&self) -> Option<&Latency> {
        Some(&self.latency)
    }
}
