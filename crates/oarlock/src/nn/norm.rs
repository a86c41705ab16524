//! Norms over the last dim. Their weights stay f32 in every precision: near one, bf16 has steps of 1/128.

use oarlock_tensor::{DType, Init, Param, Result, Shape, Tensor, ops};

use super::layers::in_dtype;
use crate::nn::{Module, Visitor, in_scope};

/// x / √(mean(x²) + eps) · (offset + weight) (Zhang and Sennrich 2019): `torch.nn.RMSNorm` where the offset is 0.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// `[dim]`.
    pub weight: Param,
    /// Added to the mean square.
    pub eps: f32,
    /// Added to the weight.
    pub offset: f32,
}

impl RmsNorm {
    /// Starts at one.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn new(dim: usize, eps: f32) -> Result<RmsNorm> {
        RmsNorm::with_offset(dim, eps, 0.0)
    }

    /// With a weight that starts at one without an offset, and at zero with one (Gemma's `1 + weight`).
    ///
    /// # Errors
    /// An impossible shape.
    pub fn with_offset(dim: usize, eps: f32, offset: f32) -> Result<RmsNorm> {
        let init = if offset == 0.0 { Init::Ones } else { Init::Zeros };
        let weight = Param::in_f32(Shape::new(&[dim])?, init);
        Ok(RmsNorm { weight, eps, offset })
    }

    /// x `[.., dim]` → `[.., dim]`, in x's dtype.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_to(x, x.dtype())
    }

    /// As [`RmsNorm::forward`], with the output in `dtype`: from an f32 residual stream to what a block computes in.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit.
    pub fn forward_to(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        in_scope(self, x.device(), || ops::rms_norm_to(x, &self.weight, self.eps, self.offset, dtype))
    }
}

impl Module for RmsNorm {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
    }
}

/// (x - mean) / √(variance + eps) · weight + bias (Ba et al. 2016): `torch.nn.LayerNorm` over the last dim.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// `[dim]`.
    pub weight: Param,
    /// `[dim]`.
    pub bias: Option<Param>,
    /// Added to the variance.
    pub eps: f32,
}

impl LayerNorm {
    /// As in torch: weight one, bias zero, eps 1e-5.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn new(dim: usize) -> Result<LayerNorm> {
        let shape = Shape::new(&[dim])?;
        Ok(LayerNorm {
            weight: Param::in_f32(shape, Init::Ones),
            bias: Some(Param::in_f32(shape, Init::Zeros)),
            eps: 1e-5,
        })
    }

    /// With another eps.
    #[must_use]
    pub fn eps(self, eps: f32) -> LayerNorm {
        LayerNorm { eps, ..self }
    }

    /// Without a bias.
    #[must_use]
    pub fn no_bias(self) -> LayerNorm {
        LayerNorm { bias: None, ..self }
    }

    /// x `[.., dim]` → `[.., dim]` in f32, as under torch's autocast.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_scope(self, x.device(), || {
            ops::layer_norm(&in_dtype(x, DType::F32)?, &self.weight, self.bias.as_ref(), self.eps)
        })
    }
}

impl Module for LayerNorm {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor.param("bias", bias);
        }
    }
}
