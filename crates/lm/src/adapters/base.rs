//! The frozen layers that adapters are put around: a linear layer, or one with a quantized weight (QLoRA).

use oarlock_tensor::{DType, Error, Param, Result, Tensor};

use oarlock_engine::nn::{self, Forward, Linear, LinearQuantized, Module, Visitor, in_scope};

/// The layer below an adapter.
#[derive(Clone, Debug)]
pub enum Base {
    /// A weight in the dtype of the model.
    Linear(Linear),
    /// A weight of 4 or 8 bits.
    Quantized(LinearQuantized),
}

impl From<&Linear> for Base {
    fn from(linear: &Linear) -> Base {
        Base::Linear(linear.clone())
    }
}

impl From<LinearQuantized> for Base {
    fn from(linear: LinearQuantized) -> Base {
        Base::Quantized(linear)
    }
}

impl Base {
    /// Outputs and inputs.
    pub(super) fn sizes(&self) -> Result<[usize; 2]> {
        match self {
            Base::Linear(linear) => match *linear.weight.shape().sizes() {
                [n_out, n_in] => Ok([n_out, n_in]),
                _ => Err(Error::Usage("Lora: the weight of a linear layer has two dims".into())),
            },
            Base::Quantized(linear) => Ok([linear.layout().rows, linear.layout().cols]),
        }
    }

    pub(super) fn freeze(&self) {
        nn::freeze(self);
    }

    pub(super) fn bias(&self) -> Option<&Param> {
        match self {
            Base::Linear(linear) => linear.bias.as_ref(),
            Base::Quantized(linear) => linear.bias.as_ref(),
        }
    }

    /// The product with the weight alone.
    pub(super) fn without_bias(&self) -> Base {
        match self {
            Base::Linear(linear) => Base::Linear(Linear::with_weight(linear.weight.clone())),
            Base::Quantized(linear) => Base::Quantized(linear.clone().no_bias()),
        }
    }

    /// The weight that it computes with, in f32 and on no tape.
    pub(super) fn weight(&self) -> Result<Tensor> {
        match self {
            Base::Linear(linear) => {
                let weight = linear.weight.weight()?;
                if weight.dtype() == DType::F32 { Ok(weight) } else { weight.cast(DType::F32) }
            }
            Base::Quantized(linear) => linear.dequantized(),
        }
    }
}

impl Forward<Tensor> for Base {
    type Output = Tensor;

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_scope(self, x.device(), || match self {
            Base::Linear(linear) => linear.forward(x),
            Base::Quantized(linear) => linear.forward(x),
        })
    }
}

impl Module for Base {
    fn visit(&self, visitor: &mut dyn Visitor) {
        match self {
            Base::Linear(linear) => linear.visit(visitor),
            Base::Quantized(linear) => linear.visit(visitor),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Base::Linear(linear) => linear.kind(),
            Base::Quantized(linear) => linear.kind(),
        }
    }
}
