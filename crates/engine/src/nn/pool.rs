//! Pooling under torch's names.

use oarlock_tensor::ops::{self, PoolOptions};
use oarlock_tensor::{Result, Tensor};

use super::conv::IntoSizes;
use super::module::{Forward, Module, Visitor};

macro_rules! module {
    ($name:ident, $op:expr) => {
        impl Module for $name {
            fn visit(&self, _visitor: &mut dyn Visitor) {}
        }

        impl Forward<Tensor> for $name {
            type Output = Tensor;
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                ($op)(x, &self.0)
            }
        }
    };
}

macro_rules! pools {
    ($($(#[$doc:meta])* $name:ident<$d:literal> => $op:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name(PoolOptions<$d>);

            impl $name {
                /// Windows of this size side by side, without padding.
                pub fn new(kernel: impl IntoSizes<$d>) -> $name {
                    $name(PoolOptions::new(kernel.into_sizes()))
                }

                /// Elements from one window to the next.
                #[must_use]
                pub fn stride(mut self, stride: impl IntoSizes<$d>) -> $name {
                    self.0.stride = stride.into_sizes();
                    self
                }

                /// Places before and after the image that windows may reach; at most half of a window.
                #[must_use]
                pub fn padding(mut self, padding: impl IntoSizes<$d>) -> $name {
                    self.0.padding = padding.into_sizes();
                    self
                }

                /// A window may reach behind the image and its padding, so that no element is left out.
                #[must_use]
                pub fn ceil_mode(mut self) -> $name {
                    self.0.ceil_mode = true;
                    self
                }
            }

            module!($name, ops::$op);
        )*
    };
}

pools! {
    /// The largest element of each window of x `[.., L]`: `torch.nn.MaxPool1d`.
    MaxPool1d<1> => max_pool1d;
    /// The largest element of each window of x `[.., H, W]`: `torch.nn.MaxPool2d`.
    MaxPool2d<2> => max_pool2d;
    /// The mean of each window of x `[.., L]`: `torch.nn.AvgPool1d`.
    AvgPool1d<1> => avg_pool1d;
    /// The mean of each window of x `[.., H, W]`: `torch.nn.AvgPool2d`.
    AvgPool2d<2> => avg_pool2d;
}

impl AvgPool1d {
    /// The mean does not count the padding: torch's `count_include_pad=False`.
    #[must_use]
    pub fn exclude_pad(mut self) -> AvgPool1d {
        self.0.count_include_pad = false;
        self
    }
}

impl AvgPool2d {
    /// The mean does not count the padding: torch's `count_include_pad=False`.
    #[must_use]
    pub fn exclude_pad(mut self) -> AvgPool2d {
        self.0.count_include_pad = false;
        self
    }
}

impl MaxPool1d {
    /// Elements from one element of a window to the next.
    #[must_use]
    pub fn dilation(mut self, dilation: impl IntoSizes<1>) -> MaxPool1d {
        self.0.dilation = dilation.into_sizes();
        self
    }
}

impl MaxPool2d {
    /// Elements from one element of a window to the next.
    #[must_use]
    pub fn dilation(mut self, dilation: impl IntoSizes<2>) -> MaxPool2d {
        self.0.dilation = dilation.into_sizes();
        self
    }
}

/// The means of so many parts of x `[.., L]`: `torch.nn.AdaptiveAvgPool1d`. One part is the mean of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveAvgPool1d(usize);

impl AdaptiveAvgPool1d {
    /// With so many places in the output.
    pub fn new(output: usize) -> AdaptiveAvgPool1d {
        AdaptiveAvgPool1d(output)
    }
}

/// The means of so many parts of x `[.., H, W]`: `torch.nn.AdaptiveAvgPool2d`. One part is the mean of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveAvgPool2d([usize; 2]);

impl AdaptiveAvgPool2d {
    /// With so many places in the output.
    pub fn new(output: impl IntoSizes<2>) -> AdaptiveAvgPool2d {
        AdaptiveAvgPool2d(output.into_sizes())
    }
}

module!(AdaptiveAvgPool1d, |x, output: &usize| ops::adaptive_avg_pool1d(x, *output));
module!(AdaptiveAvgPool2d, |x, output: &[usize; 2]| ops::adaptive_avg_pool2d(x, *output));
