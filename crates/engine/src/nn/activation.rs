//! Activations as modules, for [`Sequential`](crate::nn::Sequential); each is a method of a tensor as well.

use oarlock_tensor::{Init, Param, Result, Shape, Tensor, ops};

use super::layers::in_dtype_of;
use super::module::{Forward, Module, Visitor};
use super::scope::in_scope;

macro_rules! layer {
    ($name:ident, |$own:pat_param, $x:ident| $value:expr) => {
        impl Module for $name {
            fn visit(&self, _visitor: &mut dyn Visitor) {}
        }

        impl Forward<Tensor> for $name {
            type Output = Tensor;
            fn forward(&self, $x: &Tensor) -> Result<Tensor> {
                let $own = self;
                $value
            }
        }
    };
}

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident => $method:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name;

            layer!($name, |_, x| x.$method());
        )*
    };
}

/// Activations with settings, of which some have defaults.
macro_rules! with_settings {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty $(= $default:expr)?,)* } => |$own:ident, $x:ident| $value:expr;
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $ty,)*
            }

            with_settings!(@default $name $($field $(= $default)?,)*);
            layer!($name, |$own, $x| $value);
        )*
    };
    (@default $name:ident $($field:ident = $default:expr,)*) => {
        impl Default for $name {
            /// torch's.
            fn default() -> $name {
                $name { $($field: $default,)* }
            }
        }
    };
    (@default $name:ident $($field:ident,)*) => {};
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
    /// x kept inside `0..=6`.
    Relu6 => relu6;
    /// The scaled exponential linear unit (Klambauer et al. 2017).
    Selu => selu;
    /// `x * tanh(log(1 + e^x))` (Misra 2019).
    Mish => mish;
    /// `x / 6 + 1 / 2`, kept inside `0..=1`.
    Hardsigmoid => hardsigmoid;
    /// x times its [`Hardsigmoid`].
    Hardswish => hardswish;
    /// The logarithm of [`Sigmoid`].
    LogSigmoid => logsigmoid;
    /// `x / (1 + |x|)`.
    Softsign => softsign;
}

with_settings! {
    /// x above 0, else `negative_slope * x`: `torch.nn.LeakyReLU`.
    LeakyRelu {
        /// The slope below 0.
        negative_slope: f32 = 0.01,
    } => |own, x| x.leaky_relu(own.negative_slope);
    /// x above 0, else `alpha * (e^x - 1)`: `torch.nn.ELU`.
    Elu {
        /// What the function tends to, times -1.
        alpha: f32 = 1.0,
    } => |own, x| x.elu(own.alpha);
    /// `log(1 + e^(beta x)) / beta`, and x where `beta x` is above the threshold: `torch.nn.Softplus`.
    Softplus {
        /// The steepness at 0.
        beta: f32 = 1.0,
        /// Where the function becomes the identity.
        threshold: f32 = 20.0,
    } => |own, x| x.softplus(own.beta, own.threshold);
    /// x kept inside `min_val..=max_val`: `torch.nn.Hardtanh`.
    Hardtanh {
        /// The least value.
        min_val: f32 = -1.0,
        /// The largest value.
        max_val: f32 = 1.0,
    } => |own, x| x.hardtanh(own.min_val, own.max_val);
    /// The first half of x along a dim, times the sigmoid of the second: `torch.nn.GLU`.
    Glu {
        /// The dim; negative ones count from the end.
        dim: isize = -1,
    } => |own, x| x.glu(own.dim);
    /// `e^x` divided by its sum along a dim: `torch.nn.Softmax(dim)`.
    Softmax {
        /// The dim; negative ones count from the end.
        dim: isize,
    } => |own, x| x.softmax(own.dim);
    /// The logarithm of [`Softmax`]: `torch.nn.LogSoftmax(dim)`.
    LogSoftmax {
        /// The dim; negative ones count from the end.
        dim: isize,
    } => |own, x| x.log_softmax(own.dim);
}

/// x above 0, else x times a slope that is learned (He et al. 2015): `torch.nn.PReLU`.
#[derive(Clone, Debug)]
pub struct PRelu {
    /// `[1]`, or one for each channel.
    pub weight: Param,
}

impl PRelu {
    /// With one slope for all elements (`1`) or one for each channel, which all start at 0.25.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn new(num_parameters: usize) -> Result<PRelu> {
        let weight = Param::new(Shape::new(&[num_parameters])?, Init::Constant { value: 0.25 });
        Ok(PRelu { weight })
    }

    /// The slopes start so.
    #[must_use]
    pub fn init(self, init: Init) -> PRelu {
        PRelu { weight: Param::new(*self.weight.shape(), init) }
    }

    /// x `[N, C, ..]` → the same shape, in the dtype of the weight; of any shape with one slope.
    ///
    /// # Errors
    /// Channels that are not as many as the slopes.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_scope(self, x.device(), || {
            let x = in_dtype_of(&self.weight, x)?;
            let mut slopes = ops::parameter(&self.weight, &x)?;
            let n = self.weight.shape().n_elems();
            if n != 1 {
                if x.sizes().get(1) != Some(&n) {
                    return Err(oarlock_tensor::Error::Shape {
                        op: "PRelu",
                        expected: format!("x of shape [N, {n}, ..]"),
                        got: format!("{:?}", x.shape()),
                    });
                }
                slopes = slopes.reshape([&[n][..], &vec![1; x.sizes().len() - 2]].concat())?;
            }
            ops::where_cond(&x.gt(0)?, &x, &x.mul(&slopes)?)
        })
    }
}

impl Forward<Tensor> for PRelu {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward(x)
    }
}

impl Module for PRelu {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
    }
}
