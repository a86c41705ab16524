//! Gradients without a tape at hand: a tensor that wants one, and the backward pass from a loss.

use oarlock_kernels::{Error, Result};

use crate::ops::wrong_shape;
use crate::tape::{Gradients, Tape};
use crate::tensor::Tensor;

impl Tensor {
    /// The same elements as a leaf of a new tape: ops on it are recorded, and [`Tensor::backward`] returns its gradient,
    /// as after torch's `requires_grad_()`.
    pub fn with_grad(&self) -> Tensor {
        Tape::new().leaf(self)
    }

    /// Runs the backward pass from this loss, a tensor of one element, and returns the gradients of the leaves that it
    /// depends on. Afterward the tape is empty: a second pass needs the ops again.
    ///
    /// # Errors
    /// More than one element, nothing that wants a gradient, a loss of a prepared model, and what an op reports.
    pub fn backward(&self) -> Result<Gradients> {
        if self.n_elems() != 1 {
            return Err(wrong_shape("backward", "one element, such as a mean or a sum", self));
        }
        let tape = self.tape().ok_or_else(|| {
            Error::Usage(
                "backward: nothing that the loss depends on wants a gradient; begin with `with_grad`"
                    .to_string(),
            )
        })?;
        if !tape.tags().is_empty() {
            return Err(Error::Usage(
                "backward: the loss comes from a prepared model; give it to the `backward` of its accelerator or engine"
                    .to_string(),
            ));
        }
        tape.backward(self, 1.0)
    }
}
