//! Linear layers, embeddings and MLPs: parameters with a forward pass, under torch's names and with its initial values.

use oarlock_tensor::ops::{self, WeightLayout};
use oarlock_tensor::{DType, Init, Param, Result, Shape, Tensor};

use super::module::{Module, Visitor};
use super::scope::in_scope;
use oarlock_derive::Module;

/// y = x·Wᵀ + b, weight `[outputs, inputs]`: `torch.nn.Linear`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Param,
    /// `[outputs]`.
    pub bias: Option<Param>,
}

impl Linear {
    /// With a bias; both start as in torch, uniform up to 1 / √inputs.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn new(n_in: usize, n_out: usize) -> Result<Linear> {
        let init = Init::Uniform { bound: 1.0 / (n_in.max(1) as f32).sqrt() };
        Ok(Linear {
            weight: Param::new(Shape::new(&[n_out, n_in])?, init),
            bias: Some(Param::new(Shape::new(&[n_out])?, init)),
        })
    }

    /// The weight starts normal with standard deviation `std`, the bias at zero.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn normal(n_in: usize, n_out: usize, bias: bool, std: f32) -> Result<Linear> {
        let linear = Linear::new(n_in, n_out)?.init(Init::Normal { std }).bias_init(Init::Zeros);
        Ok(if bias { linear } else { linear.no_bias() })
    }

    /// With a weight that another layer holds as well, and no bias.
    pub fn with_weight(weight: Param) -> Linear {
        Linear { weight, bias: None }
    }

    /// Without a bias: torch's `bias=False`.
    #[must_use]
    pub fn no_bias(self) -> Linear {
        Linear { bias: None, ..self }
    }

    /// The weight starts so.
    #[must_use]
    pub fn init(self, init: Init) -> Linear {
        Linear { weight: Param::new(*self.weight.shape(), init), ..self }
    }

    /// The bias starts so, where there is one.
    #[must_use]
    pub fn bias_init(self, init: Init) -> Linear {
        Linear { bias: self.bias.map(|bias| Param::new(*bias.shape(), init)), ..self }
    }

    /// x `[.., inputs]` → `[.., outputs]`, in the dtype of the weight: an x of another is converted first, as torch's
    /// autocast does.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_scope(self, x.device(), || self.compute(x))
    }

    /// As [`Linear::forward`], as a part of another module's pass.
    pub fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = in_dtype_of(&self.weight, x)?;
        ops::linear(&x, &self.weight, self.bias.as_ref(), WeightLayout::OutIn)
    }

    /// y + W·x in the dtype of y, without the bias; written over y where nobody else has it.
    pub fn forward_add(&self, y: Tensor, x: &Tensor) -> Result<Tensor> {
        in_scope(self, x.device(), || {
            let x = in_dtype_of(&self.weight, x)?;
            if x.dtype() == y.dtype() {
                return ops::linear_add(y, &x, &self.weight);
            }
            y.add(&ops::linear(&x, &self.weight, None, WeightLayout::OutIn)?.cast(y.dtype())?)
        })
    }
}

/// x in the dtype that a weight computes in.
pub(super) fn in_dtype_of(weight: &Param, x: &Tensor) -> Result<Tensor> {
    in_dtype(x, weight.weight()?.dtype())
}

/// x in this dtype; integers stay for the op to refuse.
pub(super) fn in_dtype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype || !x.dtype().is_float() { Ok(x.clone()) } else { x.cast(dtype) }
}

impl Module for Linear {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor.param("bias", bias);
        }
    }
}

/// Rows of a table `[vocabulary, dim]` by token id: `torch.nn.Embedding`.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[vocabulary, dim]`.
    pub weight: Param,
}

impl Embedding {
    /// Starts as in torch: normal with standard deviation 1.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn new(vocab: usize, dim: usize) -> Result<Embedding> {
        Embedding::normal(vocab, dim, 1.0)
    }

    /// Starts normal with standard deviation `std`.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn normal(vocab: usize, dim: usize, std: f32) -> Result<Embedding> {
        let weight = Param::new(Shape::new(&[vocab, dim])?, Init::Normal { std });
        Ok(Embedding { weight })
    }

    /// Starts so.
    #[must_use]
    pub fn init(self, init: Init) -> Embedding {
        Embedding { weight: Param::new(*self.weight.shape(), init) }
    }

    /// ids `[..]` → `[.., dim]`.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        in_scope(self, ids.device(), || ops::embedding(ids, &self.weight))
    }

    /// ids `[..]` → `[.., dim]` in f32: the start of a residual stream.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn forward_f32(&self, ids: &Tensor) -> Result<Tensor> {
        in_scope(self, ids.device(), || ops::embedding_to(ids, &self.weight, DType::F32))
    }
}

impl Module for Embedding {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
    }
}

/// What stands between the two layers of an [`Mlp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Activation {
    /// GELU with the normal distribution function.
    #[default]
    Gelu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// The larger of x and 0.
    Relu,
    /// `x * sigmoid(x)`.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// Of each element.
    ///
    /// # Errors
    /// A tensor of integers.
    pub fn apply(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Gelu => x.gelu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::Relu => x.relu(),
            Activation::Silu => x.silu(),
            Activation::Tanh => x.tanh(),
        }
    }
}

/// Two linear layers with an activation between them, from `dim` over `hidden` back to `dim`.
#[derive(Clone, Debug, Module)]
pub struct Mlp {
    /// `[hidden, dim]`.
    pub fc1: Linear,
    /// `[dim, hidden]`.
    pub fc2: Linear,
    /// Between them.
    #[module(skip)]
    pub activation: Activation,
}

impl Mlp {
    /// With biases and GELU.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn new(dim: usize, hidden: usize) -> Result<Mlp> {
        Ok(Mlp {
            fc1: Linear::new(dim, hidden)?,
            fc2: Linear::new(hidden, dim)?,
            activation: Activation::default(),
        })
    }

    /// With another activation.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Mlp {
        Mlp { activation, ..self }
    }

    /// Without biases.
    #[must_use]
    pub fn no_bias(self) -> Mlp {
        Mlp { fc1: self.fc1.no_bias(), fc2: self.fc2.no_bias(), ..self }
    }

    /// x `[.., dim]` → `[.., dim]`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.fc2.forward(&self.activation.apply(&self.fc1.forward(x)?)?)
    }
}
