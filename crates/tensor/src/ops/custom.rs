//! Ops from outside this crate.

use crate::error::{Error, Result};
use crate::param::Param;
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
    let detached: Vec<Tensor> = inputs.iter().map(|input| input.detach()).collect();
    let output = match inputs.first() {
        Some(input) => input.device().profile().time(op.name(), 0, 0, || op.forward(&detached)),
        None => op.forward(&detached),
    };
    let output = output?.detach();
    Ok(Recorder::record(recorder, output, |recorder| CustomBackward {
        op,
        inputs: inputs.iter().map(|input| recorder.save(input)).collect(),
    }))
}

struct CustomBackward<O> {
    op: O,
    inputs: Vec<Saved>,
}

impl<O: CustomOp> Function for CustomBackward<O> {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let inputs = self.inputs.iter().map(|input| cx.get(input)).collect::<Result<Vec<_>>>()?;
        let name = self.op.name();
        let d_inputs = dy.device().profile().time(name, 0, 0, || self.op.backward(&inputs, &dy))?;
        if d_inputs.len() != inputs.len() {
            return Err(Error::Usage(format!(
                "{name}: its backward pass gave {} gradients for {} inputs",
                d_inputs.len(),
                inputs.len()
            )));
        }
        for (index, (grad, input)) in d_inputs.into_iter().zip(&inputs).enumerate() {
            let Some(grad) = grad else { continue };
            if grad.shape() != input.shape() || grad.dtype() != input.dtype() {
                let expected = format!("a gradient of input {index} like {}", input.describe());
                return Err(Error::Shape { op: name, expected, got: grad.describe() });
            }
            cx.give(index, grad.detach())?;
        }
        Ok(())
    }
}
