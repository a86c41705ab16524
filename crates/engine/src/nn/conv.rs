//! Convolutions under torch's names, with its initial values.

use oarlock_tensor::ops::{self, ConvOptions};
use oarlock_tensor::{Init, Param, Result, Shape, Tensor};

use super::layers::in_dtype_of;
use super::module::{Forward, Module, Visitor};
use super::scope::in_scope;

/// `D` sizes, or one for all dims: a kernel of `3` is `[3, 3]`.
pub trait IntoSizes<const D: usize> {
    /// The sizes.
    fn into_sizes(self) -> [usize; D];
}

impl<const D: usize> IntoSizes<D> for usize {
    fn into_sizes(self) -> [usize; D] {
        [self; D]
    }
}

impl<const D: usize> IntoSizes<D> for [usize; D] {
    fn into_sizes(self) -> [usize; D] {
        self
    }
}

impl IntoSizes<2> for (usize, usize) {
    fn into_sizes(self) -> [usize; 2] {
        self.into()
    }
}

/// A convolution over images of `D` dims, which are 1 or 2: [`Conv1d`] and [`Conv2d`].
#[derive(Clone, Debug)]
pub struct Conv<const D: usize> {
    /// `[outputs, channels / groups, kernel ..]`.
    pub weight: Param,
    /// `[outputs]`.
    pub bias: Option<Param>,
    options: ConvOptions<D>,
}

/// `torch.nn.Conv1d`: x `[.., C, L]` → `[.., O, L']`.
pub type Conv1d = Conv<1>;

/// `torch.nn.Conv2d`: x `[.., C, H, W]` → `[.., O, H', W']`.
///
/// ```
/// use oarlock::nn::{AdaptiveAvgPool2d, Conv2d, Flatten, GroupNorm, Linear, MaxPool2d, Relu, Sequential};
///
/// # fn main() -> oarlock::nn::Result<()> {
/// let net = Sequential::new()
///     .add(Conv2d::new(3, 16, 3)?.stride(2).padding(1).no_bias())
///     .add(GroupNorm::new(4, 16)?)
///     .add(Relu)
///     .add(MaxPool2d::new(3).stride(2).padding(1))
///     .add(Conv2d::new(16, 32, (1, 3))?.padding((0, 1)).groups(4)?)
///     .add(AdaptiveAvgPool2d::new(1))
///     .add(Flatten::default())
///     .add(Linear::new(32, 10)?);
/// # Ok(())
/// # }
/// ```
pub type Conv2d = Conv<2>;

impl<const D: usize> Conv<D> {
    /// With a bias, a stride of 1 and no padding; weight and bias start as in torch, uniform up to 1 / √inputs of an
    /// output.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn new(channels: usize, outputs: usize, kernel: impl IntoSizes<D>) -> Result<Conv<D>> {
        let (weight, bias) = params(channels, outputs, &kernel.into_sizes())?;
        Ok(Conv { weight, bias: Some(bias), options: ConvOptions::default() })
    }

    /// Elements from one place to the next.
    #[must_use]
    pub fn stride(mut self, stride: impl IntoSizes<D>) -> Conv<D> {
        self.options.stride = stride.into_sizes();
        self
    }

    /// Zeros before and after the image.
    #[must_use]
    pub fn padding(mut self, padding: impl IntoSizes<D>) -> Conv<D> {
        self.options.padding = padding.into_sizes();
        self
    }

    /// From one element that the kernel sees to the next.
    #[must_use]
    pub fn dilation(mut self, dilation: impl IntoSizes<D>) -> Conv<D> {
        self.options.dilation = dilation.into_sizes();
        self
    }

    /// Divides the channels into groups, each with outputs of its own; as many groups as channels are a depthwise
    /// convolution. The weight is a new one.
    ///
    /// # Errors
    /// A number that does not divide the channels and the outputs.
    pub fn groups(mut self, groups: usize) -> Result<Conv<D>> {
        let &[outputs, of_group, ref kernel @ ..] = self.weight.shape().sizes() else { return Ok(self) };
        let channels = of_group * self.options.groups;
        if groups == 0 || !channels.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            return Err(oarlock_tensor::Error::Usage(format!(
                "{}: {channels} channels and {outputs} outputs cannot be divided into {groups} groups",
                self.kind()
            )));
        }
        let (weight, bias) = params(channels / groups, outputs, kernel)?;
        self.bias = self.bias.map(|_| bias);
        self.weight = weight;
        self.options.groups = groups;
        Ok(self)
    }

    /// Without a bias: torch's `bias=False`.
    #[must_use]
    pub fn no_bias(self) -> Conv<D> {
        Conv { bias: None, ..self }
    }

    /// The weight starts so.
    #[must_use]
    pub fn init(self, init: Init) -> Conv<D> {
        Conv { weight: Param::new(*self.weight.shape(), init), ..self }
    }

    /// The bias starts so, where there is one.
    #[must_use]
    pub fn bias_init(self, init: Init) -> Conv<D> {
        Conv { bias: self.bias.map(|bias| Param::new(*bias.shape(), init)), ..self }
    }
}

fn params(channels: usize, outputs: usize, kernel: &[usize]) -> Result<(Param, Param)> {
    let fan_in = channels * kernel.iter().product::<usize>();
    let init = Init::Uniform { bound: 1.0 / (fan_in.max(1) as f32).sqrt() };
    let weight = Shape::new(&[&[outputs, channels], kernel].concat())?;
    Ok((Param::new(weight, init), Param::new(Shape::new(&[outputs])?, init)))
}

impl<const D: usize> Module for Conv<D> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor.param("bias", bias);
        }
    }

    fn kind(&self) -> &'static str {
        if D == 1 { "Conv1d" } else { "Conv2d" }
    }
}

macro_rules! forward {
    ($($d:literal => $op:ident;)*) => {
        $(
            impl Conv<$d> {
                /// The convolution in the dtype of the weight: an x of another is converted first.
                ///
                /// # Errors
                /// Shapes that do not fit.
                pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
                    in_scope(self, x.device(), || {
                        ops::$op(&in_dtype_of(&self.weight, x)?, &self.weight, self.bias.as_ref(), &self.options)
                    })
                }
            }

            impl Forward<Tensor> for Conv<$d> {
                type Output = Tensor;
                fn forward(&self, x: &Tensor) -> Result<Tensor> {
                    self.forward(x)
                }
            }
        )*
    };
}

forward! {
    1 => conv1d;
    2 => conv2d;
}
