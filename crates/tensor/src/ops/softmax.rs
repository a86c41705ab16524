//! Softmax and its logarithm over the last dim.

use crate::cpu::softmax as kernel;
use crate::error::Result;
use crate::ops::{with_float, wrong_shape};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

#[derive(Clone, Copy)]
enum Form {
    Plain,
    Log,
}

/// `e^x` divided by its sum, over the last dim.
///
/// # Errors
/// No dim, a last dim of size 0, or a tensor of integers.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    apply(x, Form::Plain, "softmax")
}

/// The logarithm of [`softmax`], without its rounding.
///
/// # Errors
/// As [`softmax`].
pub fn log_softmax(x: &Tensor) -> Result<Tensor> {
    apply(x, Form::Log, "log_softmax")
}

fn apply(x: &Tensor, form: Form, name: &'static str) -> Result<Tensor> {
    if x.sizes().is_empty() || x.shape().last() == 0 {
        return Err(wrong_shape(name, "a last dim of at least one element", x));
    }
    let recorder = Recorder::new(&[x], &[])?;
    let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), "activation")?;
    x.device().run(name, 0, 2 * x.len_bytes() as u64, |cpu| {
        with_float!(x.dtype(), name, T => {
            let (x, dim, y) = (x.slice::<T>()?, x.shape().last(), y.slice_mut::<T>()?);
            match form {
                Form::Plain => kernel::softmax_forward(cpu, x, dim, y),
                Form::Log => kernel::log_softmax_forward(cpu, x, dim, y),
            }
            Ok(())
        })
    })?;
    let kept = y.clone();
    Ok(Recorder::record(recorder, y, |_| SoftmaxBackward { y: kept, form, name }))
}

struct SoftmaxBackward {
    y: Tensor,
    form: Form,
    name: &'static str,
}

impl Function for SoftmaxBackward {
    fn backward(self: Box<Self>, mut grads: Vec<Option<Tensor>>, cx: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = grads[0].take() else { return Ok(()) };
        let device = dy.device().clone();
        let (mut dx, store) = cx.slot(0, &dy)?;
        device.run(self.name, 0, 3 * dy.len_bytes() as u64, |cpu| {
            with_float!(dy.dtype(), self.name, T => {
                let (y, dy, dim) = (self.y.slice::<T>()?, dy.slice::<T>()?, dy.shape().last());
                let dx = (dx.slice_mut::<T>()?, store);
                match self.form {
                    Form::Plain => kernel::softmax_backward(cpu, y, dy, dim, dx),
                    Form::Log => kernel::log_softmax_backward(cpu, y, dy, dim, dx),
                }
                Ok(())
            })
        })?;
        cx.put(0, dx)
    }
}
