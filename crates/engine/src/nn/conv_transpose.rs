//! Transposed convolutions under torch's names, with its initial values.

use oarlock_tensor::ops::{self, ConvTransposeOptions};
use oarlock_tensor::{Error, Init, Param, Result, Shape, Tensor};

use super::conv::IntoSizes;
use super::layers::in_dtype_of;
use super::module::{Forward, Module, Visitor};
use super::scope::in_scope;

/// A transposed convolution over images of `D` dims, which are 1 or 2: [`ConvTranspose1d`] and [`ConvTranspose2d`].
#[derive(Clone, Debug)]
pub struct ConvTranspose<const D: usize> {
    /// `[channels, outputs / groups, kernel ..]`.
    pub weight: Param,
    /// `[outputs]`.
    pub bias: Option<Param>,
    options: ConvTransposeOptions<D>,
}

/// `torch.nn.ConvTranspose1d`: x `[.., C, L]` → `[.., O, L']`.
pub type ConvTranspose1d = ConvTranspose<1>;

/// `torch.nn.ConvTranspose2d`: x `[.., C, H, W]` → `[.., O, H', W']`. With a stride of 2, a kernel of 4 and a padding of 1,
/// images become twice as large.
pub type ConvTranspose2d = ConvTranspose<2>;

impl<const D: usize> ConvTranspose<D> {
    /// With a bias, a stride of 1 and no padding; weight and bias start as in torch, uniform up to 1 / √n, where n is the
    /// number of outputs of a group times the elements of the kernel.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn new(channels: usize, outputs: usize, kernel: impl IntoSizes<D>) -> Result<ConvTranspose<D>> {
        let (weight, bias) = params(channels, outputs, 1, &kernel.into_sizes())?;
        Ok(ConvTranspose { weight, bias: Some(bias), options: ConvTransposeOptions::default() })
    }

    /// Elements of the output from one place to the next.
    #[must_use]
    pub fn stride(mut self, stride: impl IntoSizes<D>) -> ConvTranspose<D> {
        self.options.stride = stride.into_sizes();
        self
    }

    /// Elements that are cut off before and after the output.
    #[must_use]
    pub fn padding(mut self, padding: impl IntoSizes<D>) -> ConvTranspose<D> {
        self.options.padding = padding.into_sizes();
        self
    }

    /// Elements that are added after the output.
    #[must_use]
    pub fn output_padding(mut self, output_padding: impl IntoSizes<D>) -> ConvTranspose<D> {
        self.options.output_padding = output_padding.into_sizes();
        self
    }

    /// From one element that the kernel writes to the next.
    #[must_use]
    pub fn dilation(mut self, dilation: impl IntoSizes<D>) -> ConvTranspose<D> {
        self.options.dilation = dilation.into_sizes();
        self
    }

    /// Divides the channels into groups, each with outputs of its own. The weight is a new one.
    ///
    /// # Errors
    /// A number that does not divide the channels and the outputs.
    pub fn groups(mut self, groups: usize) -> Result<ConvTranspose<D>> {
        let &[channels, of_group, ref kernel @ ..] = self.weight.shape().sizes() else { return Ok(self) };
        let outputs = of_group * self.options.groups;
        if groups == 0 || !channels.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            return Err(Error::Usage(format!(
                "{}: {channels} channels and {outputs} outputs cannot be divided into {groups} groups",
                self.kind()
            )));
        }
        let (weight, bias) = params(channels, outputs, groups, kernel)?;
        self.bias = self.bias.map(|_| bias);
        self.weight = weight;
        self.options.groups = groups;
        Ok(self)
    }

    /// Without a bias: torch's `bias=False`.
    #[must_use]
    pub fn no_bias(self) -> ConvTranspose<D> {
        ConvTranspose { bias: None, ..self }
    }

    /// The weight starts so.
    #[must_use]
    pub fn init(self, init: Init) -> ConvTranspose<D> {
        ConvTranspose { weight: Param::new(*self.weight.shape(), init), ..self }
    }

    /// The bias starts so, where there is one.
    #[must_use]
    pub fn bias_init(self, init: Init) -> ConvTranspose<D> {
        ConvTranspose { bias: self.bias.map(|bias| Param::new(*bias.shape(), init)), ..self }
    }
}

fn params(channels: usize, outputs: usize, groups: usize, kernel: &[usize]) -> Result<(Param, Param)> {
    // torch counts the inputs of an output in the second dim of the weight, also here.
    let fan_in = outputs / groups * kernel.iter().product::<usize>();
    let init = Init::Uniform { bound: 1.0 / (fan_in.max(1) as f32).sqrt() };
    let weight = Shape::new(&[&[channels, outputs / groups], kernel].concat())?;
    Ok((Param::new(weight, init), Param::new(Shape::new(&[outputs])?, init)))
}

impl<const D: usize> Module for ConvTranspose<D> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor.param("bias", bias);
        }
    }

    fn kind(&self) -> &'static str {
        if D == 1 { "ConvTranspose1d" } else { "ConvTranspose2d" }
    }
}

macro_rules! forward {
    ($($d:literal => $op:ident;)*) => {
        $(
            impl ConvTranspose<$d> {
                /// The transposed convolution in the dtype of the weight: an x of another is converted first.
                ///
                /// # Errors
                /// Shapes that do not fit.
                pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
                    in_scope(self, x.device(), || {
                        ops::$op(&in_dtype_of(&self.weight, x)?, &self.weight, self.bias.as_ref(), &self.options)
                    })
                }
            }

            impl Forward<Tensor> for ConvTranspose<$d> {
                type Output = Tensor;
                fn forward(&self, x: &Tensor) -> Result<Tensor> {
                    self.forward(x)
                }
            }
        )*
    };
}

forward! {
    1 => conv_transpose1d;
    2 => conv_transpose2d;
}
