//! Norms over the last dim and over groups of channels. Their weights stay f32 in every precision: near one, bf16 has steps of 1/128.

use oarlock_tensor::{DType, Error, Init, Param, Result, Shape, Tensor, ops};

use super::layers::in_dtype;
use super::module::{Module, Visitor};
use super::scope::in_scope;

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

impl RmsNorm {
    /// The residual stream with what a part has computed, and the norm of that in `dtype`.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit.
    pub fn add_and_forward_to(
        &self,
        stream: &Tensor,
        part: &Tensor,
        dtype: DType,
    ) -> Result<(Tensor, Tensor)> {
        if !stream.device().is_cuda() {
            let sum = ops::add_residual(stream, part)?;
            let normed = self.forward_to(&sum, dtype)?;
            return Ok((sum, normed));
        }
        in_scope(self, stream.device(), || {
            ops::add_rms_norm(stream, part, &self.weight, self.eps, self.offset, dtype)
        })
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

/// Groups of channels, each normed over its channels and all places (Wu and He 2018): `torch.nn.GroupNorm`. With one group
/// for each channel it is an instance norm.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    /// `[channels]`.
    pub weight: Param,
    /// `[channels]`.
    pub bias: Param,
    /// Added to the variance.
    pub eps: f32,
    groups: usize,
}

impl GroupNorm {
    /// As in torch: weight one, bias zero, eps 1e-5.
    ///
    /// # Errors
    /// Channels that the groups do not divide.
    pub fn new(groups: usize, channels: usize) -> Result<GroupNorm> {
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(Error::Usage(format!(
                "GroupNorm: {channels} channels cannot be divided into {groups} groups"
            )));
        }
        let shape = Shape::new(&[channels])?;
        let (weight, bias) = (Param::in_f32(shape, Init::Ones), Param::in_f32(shape, Init::Zeros));
        Ok(GroupNorm { weight, bias, eps: 1e-5, groups })
    }

    /// With another eps.
    #[must_use]
    pub fn eps(self, eps: f32) -> GroupNorm {
        GroupNorm { eps, ..self }
    }

    /// x `[N, C, ..]` → the same shape in f32, as under torch's autocast.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_scope(self, x.device(), || {
            let channels = self.weight.shape().last();
            let &[n, c, ref places @ ..] = x.sizes() else { return Err(self.wrong_shape(x)) };
            if c != channels {
                return Err(self.wrong_shape(x));
            }
            let places: usize = places.iter().product();
            let rows = in_dtype(x, DType::F32)?.reshape([n, self.groups, c / self.groups * places])?;
            let centered = rows.sub(&ops::mean_keepdim(&rows, 2)?)?;
            let variance = ops::mean_keepdim(&centered.square()?, 2)?;
            let normed = centered.div(&variance.add_scalar(self.eps)?.sqrt()?)?.reshape([n, c, places])?;
            let of_channels = |param: &Param| ops::parameter(param, &normed)?.reshape([channels, 1]);
            normed.mul(&of_channels(&self.weight)?)?.add(&of_channels(&self.bias)?)?.reshape(x.sizes())
        })
    }

    fn wrong_shape(&self, x: &Tensor) -> Error {
        Error::Shape {
            op: "GroupNorm",
            expected: format!("x of shape [N, {}, ..]", self.weight.shape().last()),
            got: format!("{:?}", x.shape()),
        }
    }
}

impl Module for GroupNorm {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
        visitor.param("bias", &self.bias);
    }
}
