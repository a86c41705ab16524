//! Softmax and its logarithm along a dim. The kernels work on rows; along another dim, elements move there and back.

use oarlock_cuda::geometry;
use oarlock_kernels::softmax as kernel;
use oarlock_kernels::{Element, Result};

use crate::ints::Int;
use crate::ops::reduce::count;
use crate::ops::{dim_of, movedim, with_float};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

#[derive(Clone, Copy)]
enum Form {
    Plain,
    Log,
}

/// `e^x` divided by its sum along a dim.
///
/// # Errors
/// A dim that x does not have or without an element, or a tensor of integers.
pub fn softmax(x: &Tensor, dim: impl Int) -> Result<Tensor> {
    along("softmax", x, dim, Form::Plain)
}

/// The logarithm of [`softmax`], without its rounding.
///
/// # Errors
/// As [`softmax`].
pub fn log_softmax(x: &Tensor, dim: impl Int) -> Result<Tensor> {
    along("log_softmax", x, dim, Form::Log)
}

fn along(name: &'static str, x: &Tensor, dim: impl Int, form: Form) -> Result<Tensor> {
    let dim = dim_of(name, x, dim)?;
    count(name, x, &[dim])?;
    if dim + 1 == x.sizes().len() {
        return of_rows(x, form, name);
    }
    movedim(&of_rows(&movedim(x, dim, -1)?, form, name)?, -1, dim)
}

/// Along the last dim.
fn of_rows(x: &Tensor, form: Form, name: &'static str) -> Result<Tensor> {
    let recorder = Recorder::new(&[x], &[])?;
    let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), "activation")?;
    let (mut launch, dim) = (x.device().launch(name, 0, 2 * x.len_bytes() as u64), x.shape().last());
    with_float!(x.dtype(), name, T => {
        let rows = x.shape().n_rows();
        let (x, y) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?);
        launch.cuda(|gpu| {
            let op = match form {
                Form::Plain => "softmax_forward",
                Form::Log => "log_softmax_forward",
            };
            let call = gpu.kernel(op, &[T::DTYPE])?.view(&x).view(&y);
            call.u32(rows).u32(dim).run(geometry::rows(rows, dim))
        })?;
        launch.run(move |cpu| {
            match form {
                Form::Plain => kernel::softmax_forward(cpu, x.slice(cpu), dim, y.slice(cpu)),
                Form::Log => kernel::log_softmax_forward(cpu, x.slice(cpu), dim, y.slice(cpu)),
            }
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
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let device = dy.device().clone();
        let (mut dx, store) = cx.slot(0, &dy)?;
        let mut launch = device.launch(self.name, 0, 3 * dy.len_bytes() as u64);
        with_float!(dy.dtype(), self.name, T => {
            let (form, dim, rows) = (self.form, dy.shape().last(), dy.shape().n_rows());
            let (y, dy) = (launch.read::<T>(&self.y)?, launch.read::<T>(&dy)?);
            let dx = launch.store::<T>(&mut dx, store)?;
            launch.cuda(|gpu| {
                let op = match form {
                    Form::Plain => "softmax_backward",
                    Form::Log => "log_softmax_backward",
                };
                let call = gpu.kernel(op, &[T::DTYPE])?.view(&y).view(&dy).view(&dx).added(store);
                call.u32(rows).u32(dim).run(geometry::rows(rows, dim))
            })?;
            launch.run(move |cpu| {
                let (y, dy, dx) = (y.slice(cpu), dy.slice(cpu), (dx.slice(cpu), store));
                match form {
                    Form::Plain => kernel::softmax_backward(cpu, y, dy, dim, dx),
                    Form::Log => kernel::log_softmax_backward(cpu, y, dy, dim, dx),
                }
            })
        })?;
        cx.give(0, dx)
    }
}
