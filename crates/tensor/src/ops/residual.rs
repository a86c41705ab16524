//! The residual sum: y = a + b of equal shapes.

use crate::cpu::elementwise;
use crate::device::Kind;
use crate::error::Result;
use crate::ops::{check_device, check_dtype, with_float, wrong_shape};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// a + b, element by element.
///
/// # Errors
/// Unequal shapes or dtypes.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check_device("add", a, &[b])?;
    check_dtype("add", a, b)?;
    if a.shape() != b.shape() {
        return Err(wrong_shape("add", format!("{:?}", a.shape()), b));
    }
    let recorder = Recorder::new(&[a, b], &[])?;
    let mut y = Tensor::uninit(*a.shape(), a.dtype(), a.device(), "activation")?;
    let Kind::Cpu(cpu) = a.device().kind();
    a.device().profile().time("add", 0, 3 * a.bytes().len() as u64, || {
        with_float!(a.dtype(), "add", T => {
            elementwise::add(cpu, a.slice::<T>()?, b.slice::<T>()?, y.slice_mut::<T>()?);
            Ok(())
        })
    })?;
    match recorder {
        Some(recorder) => {
            let [y] = recorder.finish([y], AddBackward);
            Ok(y)
        }
        None => Ok(y),
    }
}

struct AddBackward;

impl Function for AddBackward {
    fn backward(self: Box<Self>, mut grads: Vec<Option<Tensor>>, cx: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = grads[0].take() else { return Ok(()) };
        cx.give(0, dy.clone())?;
        cx.give(1, dy)
    }
}
