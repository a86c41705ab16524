//! Recurrent layers under torch's names: layer by layer, a step for each position.

use oarlock_tensor::ops::{self, Activation, WeightLayout};
use oarlock_tensor::{Error, Init, Param, Result, Shape, Tensor};

use super::dropout::Dropout;
use super::layers::in_dtype;
use super::module::{Forward, Module, Visitor};
use super::scope::in_scope;

/// One layer on top of the other, each with `gates` rows of weights for each of its hidden numbers.
#[derive(Clone, Debug)]
struct Stack {
    layers: Vec<Weights>,
    input: usize,
    hidden: usize,
    gates: usize,
    /// Between the layers.
    dropout: Option<Dropout>,
}

#[derive(Clone, Debug)]
struct Weights {
    /// `[gates * hidden, inputs]`.
    ih: Param,
    /// `[gates * hidden, hidden]`.
    hh: Param,
    /// Of both products, `[gates * hidden]`.
    biases: Option<[Param; 2]>,
}

impl Stack {
    fn new(input: usize, hidden: usize, gates: usize, n_layers: usize, bias: bool) -> Result<Stack> {
        let init = Init::Uniform { bound: 1.0 / (hidden.max(1) as f32).sqrt() };
        let param = |sizes: &[usize]| Ok(Param::new(Shape::new(sizes)?, init));
        let rows = gates * hidden;
        let layer = |index: usize| {
            Ok(Weights {
                ih: param(&[rows, if index == 0 { input } else { hidden }])?,
                hh: param(&[rows, hidden])?,
                biases: if bias { Some([param(&[rows])?, param(&[rows])?]) } else { None },
            })
        };
        let layers = (0..n_layers).map(layer).collect::<Result<_>>()?;
        Ok(Stack { layers, input, hidden, gates, dropout: None })
    }

    /// With another number of layers or without biases; the weights are new ones.
    fn changed(self, n_layers: usize, bias: bool) -> Result<Stack> {
        let Stack { input, hidden, gates, dropout, .. } = self;
        Ok(Stack { dropout, ..Stack::new(input, hidden, gates, n_layers, bias)? })
    }

    fn has_bias(&self) -> bool {
        self.layers.iter().any(|layer| layer.biases.is_some())
    }

    /// x `[B, S, I]` and the first states `[L, B, H]` → the hidden numbers of the last layer `[B, S, H]` and the last
    /// states.
    /// `step` makes the states after a position of what the weights make of the input there and of the hidden numbers
    /// before it, and of the states before it; the first state are the hidden numbers.
    fn run<const N: usize>(
        &self,
        name: &'static str,
        x: &Tensor,
        first: Option<[&Tensor; N]>,
        step: impl Fn(&Tensor, &Tensor, [&Tensor; N]) -> Result<[Tensor; N]>,
    ) -> Result<(Tensor, [Tensor; N])> {
        let &[batch, len, width] = x.sizes() else { return Err(self.wrong_input(name, x)) };
        if width != self.input || len == 0 {
            return Err(self.wrong_input(name, x));
        }
        let shape = [self.layers.len(), batch, self.hidden];
        if let Some(state) = first.iter().flatten().find(|state| state.sizes() != shape) {
            let (expected, got) = (format!("states of shape {shape:?}"), format!("{:?}", state.shape()));
            return Err(Error::Shape { op: name, expected, got });
        }
        let mut x = x.clone();
        let mut ends: [Vec<Tensor>; N] = std::array::from_fn(|_| Vec::new());
        for (index, layer) in self.layers.iter().enumerate() {
            let dtype = layer.ih.weight()?.dtype();
            x = in_dtype(&x, dtype)?;
            let [of_input, of_hidden] = match &layer.biases {
                Some([ih, hh]) => [Some(ih), Some(hh)],
                None => [None, None],
            };
            let inputs = ops::linear(&x, &layer.ih, of_input, WeightLayout::OutIn)?;
            let mut states = match first {
                Some(states) => states.map(|state| beside(&x, in_dtype(&state.select(0, index)?, dtype)?)),
                None => std::array::from_fn(|_| {
                    beside(&x, Tensor::zeros([batch, self.hidden], dtype, x.device())?)
                }),
            };
            let mut outputs = Vec::with_capacity(len);
            for position in 0..len {
                let before = all(states)?;
                let hidden = ops::linear(&before[0], &layer.hh, of_hidden, WeightLayout::OutIn)?;
                let after = step(&inputs.select(1, position)?, &hidden, before.each_ref())?;
                outputs.push(after[0].clone());
                states = after.map(Ok);
            }
            x = Tensor::stack(&outputs, 1)?;
            for (ends, state) in ends.iter_mut().zip(all(states)?) {
                ends.push(state);
            }
            if let Some(dropout) = self.dropout.as_ref().filter(|_| index + 1 < self.layers.len()) {
                x = dropout.forward(&x)?;
            }
        }
        Ok((x, all(ends.map(|states| Tensor::stack(&states, 0)))?))
    }

    fn wrong_input(&self, name: &'static str, x: &Tensor) -> Error {
        Error::Shape {
            op: name,
            expected: format!("x of shape [B, S, {}] with at least one position", self.input),
            got: format!("{:?}", x.shape()),
        }
    }

    fn visit(&self, visitor: &mut dyn Visitor) {
        for (index, layer) in self.layers.iter().enumerate() {
            visitor.param(&format!("weight_ih_l{index}"), &layer.ih);
            visitor.param(&format!("weight_hh_l{index}"), &layer.hh);
            if let Some([ih, hh]) = &layer.biases {
                visitor.param(&format!("bias_ih_l{index}"), ih);
                visitor.param(&format!("bias_hh_l{index}"), hh);
            }
        }
        if let Some(dropout) = &self.dropout {
            dropout.visit(visitor);
        }
    }
}

/// All of them, or the first error.
fn all<const N: usize>(results: [Result<Tensor>; N]) -> Result<[Tensor; N]> {
    let tensors = results.into_iter().collect::<Result<Vec<_>>>()?;
    tensors.try_into().map_err(|_| Error::Usage("a recurrent layer lost a state".to_owned()))
}

/// A first state on the tape of x, so that the weights that meet it are recorded.
fn beside(x: &Tensor, state: Tensor) -> Result<Tensor> {
    Ok(match x.tape().filter(|_| state.tape().is_none()) {
        Some(tape) => tape.input(&state),
        None => state,
    })
}

/// `sigmoid(gate) * x`.
fn gated(gate: &Tensor, x: &Tensor) -> Result<Tensor> {
    ops::gated(gate, x, Activation::Sigmoid)
}

macro_rules! recurrent {
    ($($(#[$doc:meta])* $name:ident<$gates:literal>;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug)]
            pub struct $name(Stack);

            impl $name {
                /// One layer with biases. Weights and biases start as in torch, uniform up to 1 / √hidden.
                ///
                /// # Errors
                /// An impossible shape.
                pub fn new(input: usize, hidden: usize) -> Result<$name> {
                    Stack::new(input, hidden, $gates, 1, true).map($name)
                }

                /// With so many layers, one on top of the other. The weights are new ones.
                ///
                /// # Errors
                /// An impossible shape.
                pub fn num_layers(self, n: usize) -> Result<$name> {
                    let bias = self.0.has_bias();
                    self.0.changed(n, bias).map($name)
                }

                /// Without biases: torch's `bias=False`. The weights are new ones.
                ///
                /// # Errors
                /// An impossible shape.
                pub fn no_bias(self) -> Result<$name> {
                    let n = self.0.layers.len();
                    self.0.changed(n, false).map($name)
                }

                /// Drops elements between the layers with probability `p` while the model trains: torch's `dropout`.
                #[must_use]
                pub fn dropout(mut self, p: f32) -> $name {
                    self.0.dropout = (p != 0.0).then(|| Dropout::new(p));
                    self
                }
            }

            impl Module for $name {
                fn visit(&self, visitor: &mut dyn Visitor) {
                    self.0.visit(visitor);
                }
            }
        )*
    };
}

recurrent! {
    /// A long short-term memory (Hochreiter and Schmidhuber 1997): `torch.nn.LSTM(batch_first=True)`.
    Lstm<4>;
    /// Gated recurrent units (Cho et al. 2014): `torch.nn.GRU(batch_first=True)`.
    Gru<3>;
    /// A recurrent layer with tanh (Elman 1990): `torch.nn.RNN(batch_first=True)`.
    Rnn<1>;
}

impl Lstm {
    /// x `[B, S, I]` → the hidden numbers of the last layer `[B, S, H]`, and hidden numbers and cells of all layers after
    /// the last position, each `[L, B, H]`. The first states are zeros, or those given.
    ///
    /// # Errors
    /// Shapes that do not fit, or no position.
    pub fn forward(
        &self,
        x: &Tensor,
        first: Option<(&Tensor, &Tensor)>,
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        in_scope(self, x.device(), || {
            let first = first.map(|(hidden, cells)| [hidden, cells]);
            let (y, [hidden, cells]) = self.0.run("Lstm", x, first, |input, hidden, [_, cells]| {
                let gates = input.add(hidden)?.chunk(4, -1)?;
                let kept = gated(&gates[1], cells)?;
                let cells = kept.add(&gated(&gates[0], &gates[2].tanh()?)?)?;
                Ok([gated(&gates[3], &cells.tanh()?)?, cells])
            })?;
            Ok((y, (hidden, cells)))
        })
    }
}

impl Gru {
    /// x `[B, S, I]` → the hidden numbers of the last layer `[B, S, H]`, and those of all layers after the last position
    /// `[L, B, H]`. The first ones are zeros, or those given.
    ///
    /// # Errors
    /// Shapes that do not fit, or no position.
    pub fn forward(&self, x: &Tensor, first: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        in_scope(self, x.device(), || {
            let (y, [last]) =
                self.0.run("Gru", x, first.map(|first| [first]), |input, hidden, [before]| {
                    let (input, hidden) = (input.chunk(3, -1)?, hidden.chunk(3, -1)?);
                    let reset = input[0].add(&hidden[0])?;
                    let update = input[1].add(&hidden[1])?;
                    let new = input[2].add(&gated(&reset, &hidden[2])?)?.tanh()?;
                    Ok([new.add(&gated(&update, &before.sub(&new)?)?)?])
                })?;
            Ok((y, last))
        })
    }
}

impl Rnn {
    /// As [`Gru::forward`].
    ///
    /// # Errors
    /// As [`Gru::forward`].
    pub fn forward(&self, x: &Tensor, first: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        in_scope(self, x.device(), || {
            let (y, [last]) = self.0.run("Rnn", x, first.map(|first| [first]), |input, hidden, _| {
                Ok([input.add(hidden)?.tanh()?])
            })?;
            Ok((y, last))
        })
    }
}

macro_rules! forward {
    ($($name:ident => $Output:ty;)*) => {
        $(
            impl Forward<Tensor> for $name {
                type Output = $Output;
                fn forward(&self, x: &Tensor) -> Result<$Output> {
                    self.forward(x, None)
                }
            }
        )*
    };
}

forward! {
    Lstm => (Tensor, (Tensor, Tensor));
    Gru => (Tensor, Tensor);
    Rnn => (Tensor, Tensor);
}
