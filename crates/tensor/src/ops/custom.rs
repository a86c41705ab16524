//! Ops from outside this crate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_kernels::{DType, Error, Result};

use crate::ops::beside;
use crate::param::Param;
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// A custom op: what it computes, and its gradients.
///
/// ```
/// use oarlock_tensor::ops::{self, CustomOp};
/// use oarlock_tensor::{Device, Par, Result, Tape, Tensor, cpu::Isa};
///
/// /// x³
/// struct Cube;
///
/// impl CustomOp for Cube {
///     fn name(&self) -> &'static str {
///         "cube"
///     }
///
///     fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
///         inputs[0].powf(3.0)
///     }
///
///     fn backward(&self, inputs: &[Tensor], grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
///         // 3 x² dy: ops on tensors that are on no tape are just computed.
///         Ok(vec![Some(inputs[0].square()?.scale(3.0)?.mul(grad)?)])
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let device = Device::cpu(Isa::detect(), Par::solo());
/// let tape = Tape::new();
/// let x = tape.leaf(&Tensor::from_slice(&[1.0f32, -2.0], [2], &device)?);
/// let y = ops::custom(Cube, &[&x])?;
/// let loss = y.sum_all()?;
/// assert_eq!(loss.item::<f32>()?, 1.0 - 8.0);
/// let gradients = tape.backward(&loss, 1.0)?;
/// assert_eq!(gradients.of(&x).unwrap().to_vec::<f32>()?, [3.0, 12.0]);
/// # Ok(())
/// # }
/// ```
pub trait CustomOp: Send + 'static {
    /// Its name, for errors and profiles.
    fn name(&self) -> &'static str;

    /// The output. The inputs are on no tape, so ops on them are not recorded.
    ///
    /// # Errors
    /// Whatever the op reports.
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor>;

    /// The gradients of the inputs, from that of the output: each of its input's shape and dtype, or `None` where the
    /// op has none. Gradients of parameters go to [`Param::grad`], where that is not `None`.
    ///
    /// # Errors
    /// Whatever the op reports.
    fn backward(&self, inputs: &[Tensor], grad: &Tensor) -> Result<Vec<Option<Tensor>>>;

    /// The parameters that it uses.
    fn params(&self) -> Vec<&Param> {
        Vec::new()
    }
}

/// Runs a custom op; where an input is on a tape, the op is recorded.
///
/// # Errors
/// Inputs on two tapes, and whatever the op reports.
pub fn custom(op: impl CustomOp, inputs: &[&Tensor]) -> Result<Tensor> {
    let recorder = Recorder::new(inputs, &op.params())?;
    let output = time(op.name(), inputs.first().copied(), || op.forward(&detached(inputs)))?.detach();
    Ok(Recorder::record(recorder, output, |recorder| CustomBackward { op, inputs: saved(recorder, inputs) }))
}

/// A custom op with several outputs: what it computes, and its gradients.
///
/// ```
/// use oarlock_tensor::ops::{self, CustomOps};
/// use oarlock_tensor::{Device, Result, Tape, Tensor};
///
/// /// Sine and cosine.
/// struct SinCos;
///
/// impl CustomOps for SinCos {
///     fn name(&self) -> &'static str {
///         "sin cos"
///     }
///
///     fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
///         Ok(vec![inputs[0].sin()?, inputs[0].cos()?])
///     }
///
///     fn backward(&self, inputs: &[Tensor], grads: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
///         let of_sin = inputs[0].cos()?.mul(&grads[0])?;
///         let of_cos = inputs[0].sin()?.mul(&grads[1])?;
///         Ok(vec![Some(of_sin.sub(&of_cos)?)])
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let tape = Tape::new();
/// let x = tape.leaf(&Tensor::from_slice(&[0.0f32], [1], &Device::default())?);
/// let outputs = ops::custom_outputs(SinCos, &[&x])?;
/// let gradients = tape.backward(&outputs[0].add(&outputs[1])?, 1.0)?;
/// assert_eq!(gradients.of(&x).unwrap().to_vec::<f32>()?, [1.0]);
/// # Ok(())
/// # }
/// ```
pub trait CustomOps: Send + 'static {
    /// Its name, for errors and profiles.
    fn name(&self) -> &'static str;

    /// The outputs. The inputs are on no tape, so ops on them are not recorded.
    ///
    /// # Errors
    /// Whatever the op reports.
    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>>;

    /// The gradients of the inputs, as [`CustomOp::backward`] gives them, from those of the outputs, each of its output's
    /// shape and dtype. An output that the loss does not depend on has a gradient of zeros, and so has one of integers.
    ///
    /// # Errors
    /// Whatever the op reports.
    fn backward(&self, inputs: &[Tensor], grads: &[Tensor]) -> Result<Vec<Option<Tensor>>>;

    /// The parameters that it uses.
    fn params(&self) -> Vec<&Param> {
        Vec::new()
    }
}

/// Runs a custom op with several outputs; where an input is on a tape, the op is recorded. Its backward pass runs once,
/// when the gradients of all outputs are complete, and not at all if the loss depends on none of them.
///
/// # Errors
/// Inputs on two tapes, and whatever the op reports.
pub fn custom_outputs(op: impl CustomOps, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let recorder = Recorder::new(inputs, &op.params())?;
    let outputs = time(op.name(), inputs.first().copied(), || op.forward(&detached(inputs)))?;
    let outputs: Vec<Tensor> = outputs.iter().map(Tensor::detach).collect();
    let Some(input) = inputs.first().filter(|_| recorder.is_some()) else { return Ok(outputs) };
    // The op is one node of the tape, whose own output is empty. Each of its outputs is a node after it, which leaves
    // its gradient there.
    let grads = Grads::default();
    let empty = Tensor::uninit([0], DType::F32, input.device(), "activation")?;
    let node = Recorder::record(recorder, empty, |recorder| OutputsBackward {
        op,
        inputs: saved(recorder, inputs),
        outputs: outputs.iter().map(|output| (*output.shape(), output.dtype())).collect(),
        grads: grads.clone(),
    });
    let on_tape = |(index, output): (usize, Tensor)| {
        if !output.dtype().is_float() {
            return Ok(beside(&[&node], output));
        }
        let grads = grads.clone();
        let recorder = Recorder::new(&[&node], &[])?;
        Ok(Recorder::record(recorder, output, |_| OutputBackward { index, grads }))
    };
    outputs.into_iter().enumerate().map(on_tape).collect()
}

/// Runs an op that is linear in its one input: the backward pass applies the transposed `transpose` to the gradient and
/// keeps nothing.
///
/// # Errors
/// Whatever the op reports.
pub fn custom_linear(
    name: &'static str,
    x: &Tensor,
    map: impl Fn(&Tensor) -> Result<Tensor>,
    transpose: impl Fn(&Tensor) -> Result<Tensor> + Send + 'static,
) -> Result<Tensor> {
    let recorder = Recorder::new(&[x], &[])?;
    let output = time(name, Some(x), || map(&x.detach()))?.detach();
    let shape = *x.shape();
    Ok(Recorder::record(recorder, output, |_| LinearBackward { name, transpose, shape }))
}

struct LinearBackward<F> {
    name: &'static str,
    transpose: F,
    shape: Shape,
}

impl<F: Fn(&Tensor) -> Result<Tensor> + Send + 'static> Function for LinearBackward<F> {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let dx = time(self.name, Some(&dy), || (self.transpose)(&dy))?.detach();
        if *dx.shape() != self.shape || dx.dtype() != dy.dtype() {
            let (expected, got) = (format!("a gradient {:?}", self.shape), format!("{:?}", dx.shape()));
            return Err(Error::Shape { op: self.name, expected, got });
        }
        cx.give(0, dx)
    }
}

fn detached(inputs: &[&Tensor]) -> Vec<Tensor> {
    inputs.iter().map(|input| input.detach()).collect()
}

fn saved(recorder: &Recorder, inputs: &[&Tensor]) -> Vec<Saved> {
    inputs.iter().map(|input| recorder.save(input)).collect()
}

/// Runs a part of an op, for the profile of the device of `tensor`.
fn time<R>(name: &'static str, tensor: Option<&Tensor>, f: impl FnOnce() -> R) -> R {
    match tensor {
        Some(tensor) => tensor.device().profile().time(name, 0, 0, f),
        None => f(),
    }
}

struct CustomBackward<O> {
    op: O,
    inputs: Vec<Saved>,
}

impl<O: CustomOp> Function for CustomBackward<O> {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let inputs = self.inputs.iter().map(|input| cx.get(input)).collect::<Result<Vec<_>>>()?;
        let name = self.op.name();
        let d_inputs = time(name, Some(&dy), || self.op.backward(&inputs, &dy))?;
        give(name, &inputs, d_inputs, cx)
    }
}

/// The gradients of an op's outputs, as far as they have come.
type Grads = Arc<Mutex<HashMap<usize, Tensor>>>;

struct OutputBackward {
    index: usize,
    grads: Grads,
}

impl Function for OutputBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let empty = Tensor::uninit([0], DType::F32, dy.device(), "gradient")?;
        self.grads.lock().unwrap_or_else(PoisonError::into_inner).insert(self.index, dy);
        // So that the node of the op is run.
        cx.give(0, empty)
    }
}

struct OutputsBackward<O> {
    op: O,
    inputs: Vec<Saved>,
    outputs: Vec<(Shape, DType)>,
    grads: Grads,
}

impl<O: CustomOps> Function for OutputsBackward<O> {
    fn backward(self: Box<Self>, empty: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let inputs = self.inputs.iter().map(|input| cx.get(input)).collect::<Result<Vec<_>>>()?;
        let mut came = std::mem::take(&mut *self.grads.lock().unwrap_or_else(PoisonError::into_inner));
        let grad = |(index, (shape, dtype)): (usize, &(Shape, DType))| match came.remove(&index) {
            Some(grad) => Ok(grad),
            None => Tensor::zeros(*shape, *dtype, empty.device()),
        };
        let grads = self.outputs.iter().enumerate().map(grad).collect::<Result<Vec<_>>>()?;
        let name = self.op.name();
        let d_inputs = time(name, Some(&empty), || self.op.backward(&inputs, &grads))?;
        give(name, &inputs, d_inputs, cx)
    }
}

/// Gives the inputs of an op their gradients.
fn give(
    name: &'static str,
    inputs: &[Tensor],
    grads: Vec<Option<Tensor>>,
    cx: &mut Backward<'_>,
) -> Result<()> {
    if grads.len() != inputs.len() {
        return Err(Error::Usage(format!(
            "{name}: its backward pass gave {} gradients for {} inputs",
            grads.len(),
            inputs.len()
        )));
    }
    for (index, (grad, input)) in grads.into_iter().zip(inputs).enumerate() {
        let Some(grad) = grad else { continue };
        if grad.shape() != input.shape() || grad.dtype() != input.dtype() {
            let expected = format!("a gradient of input {index} like {}", input.describe());
            return Err(Error::Shape { op: name, expected, got: grad.describe() });
        }
        cx.give(index, grad.detach())?;
    }
    Ok(())
}
