//! Activations as modules, for [`Sequential`](crate::nn::Sequential); each is a method of a tensor as well.

use oarlock_tensor::{Result, Tensor};

use crate::nn::{Forward, Module, Visitor};

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident => $method:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name;

            impl Module for $name {
                fn visit(&self, _visitor: &mut dyn Visitor) {}
            }

            impl Forward<Tensor> for $name {
                type Output = Tensor;
                fn forward(&self, x: &Tensor) -> Result<Tensor> {
                    x.$method()
                }
            }
        )*
    };
}

activations! {
    /// The larger of x and 0.
    Relu => relu;
    /// `torch.nn.GELU()`: GELU with the normal distribution function.
    Gelu => gelu;
    /// `torch.nn.GELU("tanh")`: GELU in its tanh approximation, as GPT-2 has it.
    GeluTanh => gelu_tanh;
    /// `x * sigmoid(x)`.
    Silu => silu;
    /// The hyperbolic tangent.
    Tanh => tanh;
    /// `1 / (1 + e^-x)`.
    Sigmoid => sigmoid;
    /// `e^x` divided by its sum, over the last dim: `torch.nn.Softmax(dim=-1)`.
    Softmax => softmax;
    /// The logarithm of [`Softmax`].
    LogSoftmax => log_softmax;
}
