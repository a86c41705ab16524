//! The projections of a decoder: linear layers, or the layers that a program has put in their place.

use std::sync::Arc;

use oarlock_tensor::{DType, Result, Tensor};

use crate::nn::{Layer, Linear, Module, parameters};

/// A linear layer of a block, or what stands in its place. Cloning gives another handle to the same parameters.
#[derive(Clone)]
pub(super) enum Projection {
    Linear(Linear),
    Other(Arc<dyn Layer>),
}

/// What takes the place of a linear layer; see [`Decoder::map_linears`](super::Decoder::map_linears).
pub(super) type MapLinear<'a> = &'a mut dyn FnMut(&str, &Linear) -> Result<Option<Box<dyn Layer>>>;

impl Projection {
    pub fn normal(n_in: usize, n_out: usize, bias: bool, std: f32) -> Result<Projection> {
        Ok(Projection::Linear(Linear::normal(n_in, n_out, bias, std)?))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Projection::Linear(linear) => linear.forward(x),
            Projection::Other(layer) => layer.forward(x),
        }
    }

    /// What it computes in.
    pub fn dtype(&self) -> Result<DType> {
        match self {
            Projection::Linear(linear) => Ok(linear.weight.weight()?.dtype()),
            Projection::Other(layer) => {
                let all = parameters(&**layer);
                let follows = |dtype| dtype != DType::F32;
                let own = all.iter().find(|named| follows(named.param.compute_dtype(DType::BF16)));
                own.map_or(Ok(DType::F32), |named| {
                    Ok(named.param.compute_dtype(named.param.weight()?.dtype()))
                })
            }
        }
    }

    /// The layer itself, as profiles know it.
    pub fn module(&self) -> &dyn Module {
        match self {
            Projection::Linear(linear) => linear,
            Projection::Other(layer) => &**layer,
        }
    }

    /// Puts another layer in the place of a linear one, where `f` has one for it.
    pub fn map(&mut self, path: &str, f: MapLinear<'_>) -> Result<()> {
        if let Projection::Linear(linear) = self
            && let Some(layer) = f(path, linear)?
        {
            *self = Projection::Other(layer.into());
        }
        Ok(())
    }
}

impl std::fmt::Debug for Projection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Projection::Linear(linear) => linear.fmt(f),
            Projection::Other(layer) => f.write_str(layer.kind()),
        }
    }
}
