//! A parameter as a tensor among others, for models that compute with it in ops of their own.

use oarlock_kernels::elementwise;
use oarlock_kernels::{DType, Element, Result};

use crate::cuda::forms;
use crate::ops::with_float;
use crate::param::{Param, Store};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// The working copy of `param`, on the tape of `beside`: learned positions, scales, masks. The tape keeps no lease on it:
/// when the backward pass needs it, the parameter lends it again.
///
/// # Errors
/// A parameter without a home.
pub fn parameter(param: &Param, beside: &Tensor) -> Result<Tensor> {
    let weight = param.weight()?;
    // Only the tape of `beside` matters: its gradient has nothing to do with the parameter.
    let on_tape = beside.tape().map(|tape| tape.input(&weight));
    let recorder = Recorder::new(&[on_tape.as_ref().unwrap_or(&weight)], &[param])?;
    Ok(Recorder::record(recorder, weight, |_| ParameterBackward { param: param.clone() }))
}

struct ParameterBackward {
    param: Param,
}

impl Function for ParameterBackward {
    fn backward(self: Box<Self>, dy: Tensor, _cx: &mut Backward<'_>) -> Result<()> {
        let Some(mut slot) = self.param.grad()? else { return Ok(()) };
        let store = slot.store;
        let mut launch = dy.device().launch("parameter", 0, 2 * dy.len_bytes() as u64);
        with_float!(dy.dtype(), "parameter", T => {
            let n = dy.n_elems();
            let (dy, grad) = (launch.read::<T>(&dy)?, launch.grad(&mut slot)?);
            launch.cuda(|gpu| match store {
                Store::Overwrite => forms::cast(gpu, (&dy, T::DTYPE), (&grad, DType::F32), n),
                Store::Add => forms::add_assign(gpu, (&grad, DType::F32), (&dy, T::DTYPE), n),
            })?;
            launch.run(move |cpu| match store {
                Store::Overwrite => elementwise::cast(cpu, dy.slice(cpu), grad.slice(cpu)),
                Store::Add => elementwise::axpy(cpu, 1.0, dy.slice(cpu), grad.slice(cpu)),
            })
        })
    }
}
