//! `gather_with_grad`: the rows of all ranks for a loss that compares them, with gradients back to the rank of each row.

use oarlock_tensor::{Error as TensorError, Tensor, ops};

use crate::Result;
use crate::accelerator::handle::Accelerator;

impl Accelerator {
    /// As [`Accelerator::gather`] of a tensor, and recorded for the backward pass: the gradient of this rank's rows is the
    /// sum of the gradients that all ranks have for them, as with `torch.distributed.nn.all_gather`. For losses over the
    /// batch of all ranks, such as contrastive ones. All ranks call it, and all run the backward pass.
    ///
    /// # Errors
    /// As [`Accelerator::gather`]; so does the backward pass.
    #[track_caller]
    pub fn gather_with_grad(&self, tensor: &Tensor) -> Result<Tensor> {
        let gathered = self.gather_for("gather_with_grad", tensor)?;
        Ok(ops::custom(GatherWithGrad { accelerator: self.clone(), gathered }, &[tensor])?)
    }
}

struct GatherWithGrad {
    accelerator: Accelerator,
    gathered: Tensor,
}

impl ops::CustomOp for GatherWithGrad {
    fn name(&self) -> &'static str {
        "gather_with_grad"
    }

    fn forward(&self, _inputs: &[Tensor]) -> oarlock_tensor::Result<Tensor> {
        Ok(self.gathered.clone())
    }

    fn backward(&self, inputs: &[Tensor], grad: &Tensor) -> oarlock_tensor::Result<Vec<Option<Tensor>>> {
        let own = self.accelerator.reduce_scatter("the backward pass of gather_with_grad", grad);
        let own = own.map_err(|error| TensorError::Hook(Box::new(error)))?;
        Ok(vec![Some(own.reshape(inputs[0].sizes())?)])
    }
}
