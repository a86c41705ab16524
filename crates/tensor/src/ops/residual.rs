//! The residual stream: an f32 sum of what the parts of a model add to it, whatever they compute in.

use oarlock_cuda::geometry;
use oarlock_kernels::{DType, Element, Error, Result, elementwise};

use crate::cuda::forms;
use crate::ops::{check_device, with_float, wrong_shape};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// stream + part, element by element: the stream is f32, the part of any float dtype, the result f32.
///
/// # Errors
/// Unequal shapes, or a stream that is not f32.
pub fn add_residual(stream: &Tensor, part: &Tensor) -> Result<Tensor> {
    check(stream, part)?;
    let recorder = Recorder::new(&[stream, part], &[])?;
    let mut sum = Tensor::uninit(*stream.shape(), DType::F32, stream.device(), "activation")?;
    let bytes = (2 * stream.len_bytes() + part.len_bytes()) as u64;
    let n_elems = stream.n_elems();
    let mut launch = stream.device().launch("add_residual", 0, bytes);
    with_float!(part.dtype(), "add_residual", T => {
        let (stream, part) = (launch.read::<f32>(stream)?, launch.read::<T>(part)?);
        let (sum, n) = (launch.write::<f32>(&mut sum)?, n_elems);
        launch.cuda(|gpu| {
            let call = gpu.kernel("add_mixed", &[T::DTYPE])?.view(&stream).view(&part).view(&sum);
            call.u64(n).run(geometry::elements(n))
        })?;
        launch.run(move |cpu| elementwise::add_mixed(cpu, stream.slice(cpu), part.slice(cpu), sum.slice(cpu)))
    })?;
    Ok(record(recorder, sum, part.dtype()))
}

pub(super) fn check(stream: &Tensor, part: &Tensor) -> Result<()> {
    check_device("add_residual", stream, &[part])?;
    if stream.dtype() != DType::F32 {
        return Err(Error::DType { op: "add_residual", expected: "a stream in f32", got: stream.dtype() });
    }
    if stream.shape() != part.shape() {
        return Err(wrong_shape("add_residual", format!("{:?}", stream.shape()), part));
    }
    Ok(())
}

/// Records that `sum` is that of a stream and a part of this dtype, its inputs in this order.
pub(super) fn record(recorder: Option<Recorder>, sum: Tensor, part: DType) -> Tensor {
    Recorder::record(recorder, sum, |_| AddResidualBackward { part })
}

struct AddResidualBackward {
    part: DType,
}

impl Function for AddResidualBackward {
    fn backward(self: Box<Self>, d_sum: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        if self.part == DType::F32 {
            cx.give(1, d_sum.clone())?;
        } else if cx.needs(1) {
            let of_part = match cx.take_rounded() {
                Some(there) => there,
                None => rounded(&d_sum, self.part)?,
            };
            cx.give(1, of_part)?;
        }
        cx.give(0, d_sum)
    }

    fn rounds(&self) -> Option<(usize, DType)> {
        (self.part != DType::F32).then_some((1, self.part))
    }
}

/// An f32 tensor in another dtype; not recorded.
fn rounded(x: &Tensor, dtype: DType) -> Result<Tensor> {
    let mut y = Tensor::uninit(*x.shape(), dtype, x.device(), "gradient")?;
    let mut launch = x.device().launch("round gradient", 0, (x.len_bytes() + y.len_bytes()) as u64);
    with_float!(dtype, "add_residual", T => {
        let n = x.n_elems();
        let (x, y) = (launch.read::<f32>(x)?, launch.write::<T>(&mut y)?);
        launch.cuda(|gpu| forms::cast(gpu, (&x, DType::F32), (&y, T::DTYPE), n))?;
        launch.run(move |cpu| elementwise::cast(cpu, x.slice(cpu), y.slice(cpu)))
    })?;
    Ok(y)
}
