//! The projections of a decoder: linear layers, or the layers that a program has put in their place; several of one input
//! may be one fused layer.

use std::sync::Arc;

use oarlock_tensor::{DType, Error, Param, Result, Tensor, ops};

use oarlock_engine::nn::{Layer, Linear, Module, Visitor, parameters};

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

/// N projections of one input: each a layer of its own, or all of them one layer, whose outputs lie side by side. They are
/// what the family's files hold, so that adapters, quantized weights and optimizers see the same layers as in transformers.
#[derive(Clone, Debug)]
pub(super) struct Projections<const N: usize> {
    /// By their names: one, or N.
    layers: Vec<(&'static str, Projection)>,
    /// The outputs of each projection.
    sizes: [usize; N],
}

impl<const N: usize> Projections<N> {
    /// The projections `parts` with their outputs. Where `fused` names a layer, that one is all of them.
    pub fn normal(
        n_in: usize,
        parts: [(&'static str, usize); N],
        fused: Option<&'static str>,
        bias: bool,
        std: f32,
    ) -> Result<Projections<N>> {
        let sizes = parts.map(|(_, size)| size);
        let layers = match fused {
            Some(name) => vec![(name, sizes.iter().sum())],
            None => parts.to_vec(),
        };
        let layer = |(name, size)| Ok((name, Projection::normal(n_in, size, bias, std)?));
        Ok(Projections { layers: layers.into_iter().map(layer).collect::<Result<_>>()?, sizes })
    }

    /// What each projection makes of x.
    pub fn forward(&self, x: &Tensor) -> Result<[Tensor; N]> {
        let outputs = match self.layers.as_slice() {
            [(_, fused)] => ops::split(&fused.forward(x)?, self.sizes, -1)?,
            layers => layers.iter().map(|(_, layer)| layer.forward(x)).collect::<Result<_>>()?,
        };
        outputs.try_into().map_err(|_| Error::Usage(format!("a layer has no {N} projections")))
    }

    /// What all of them make of x side by side in each row, on a GPU, where one product is worth more than several that are
    /// smaller: by the one layer that is all of them, or by linear layers whose weights follow each other in memory. `None` where
    /// each computes by itself.
    pub fn forward_fused(&self, x: &Tensor) -> Result<Option<Tensor>> {
        if !x.device().is_gpu() {
            return Ok(None);
        }
        if let [(_, fused)] = self.layers.as_slice() {
            return fused.forward(x).map(Some);
        }
        let (mut weights, mut biases) = (Vec::with_capacity(N), Vec::with_capacity(N));
        for (_, layer) in &self.layers {
            let Projection::Linear(linear) = layer else { return Ok(None) };
            weights.push(&linear.weight);
            biases.extend(&linear.bias);
        }
        let Some(weight) = Param::side_by_side(&weights)? else { return Ok(None) };
        let bias = Param::side_by_side(&biases)?;
        // Biases that lie elsewhere, or of some layers only.
        if !biases.is_empty() && (bias.is_none() || biases.len() < N) {
            return Ok(None);
        }
        Linear { weight, bias }.compute(x).map(Some)
    }

    /// What they compute in.
    pub fn dtype(&self) -> Result<DType> {
        self.layers.first().map_or(Ok(DType::F32), |(_, layer)| layer.dtype())
    }

    /// As [`Projection::map`], of each layer below `path`.
    pub fn map(&mut self, path: &str, f: MapLinear<'_>) -> Result<()> {
        self.layers.iter_mut().try_for_each(|(name, layer)| layer.map(&format!("{path}.{name}"), f))
    }

    /// Shows each layer.
    pub fn visit(&self, visitor: &mut dyn Visitor) {
        self.layers.iter().for_each(|(name, layer)| visitor.child(name, layer.module()));
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
