//! Sums of gradients on the tape: in place where nobody else sees the memory.

use oarlock_cuda::geometry;
use oarlock_kernels::elementwise;
use oarlock_kernels::{DType, Element, Result};

use crate::cuda::forms;
use crate::ops::{with_float, wrong_shape};
use crate::tensor::{Known, Tensor};

/// sum + more, written over `sum` when it has no other owner; without a sum yet, `more` itself.
pub(crate) fn add_to(sum: Option<Tensor>, more: Tensor) -> Result<Tensor> {
    let Some(mut sum) = sum else { return Ok(more) };
    if sum.shape() != more.shape() {
        return Err(wrong_shape("gradient sum", format!("{:?}", sum.shape()), &more));
    }
    if !sum.is_unique() {
        sum = sum.copied("gradient")?;
    }
    let device = sum.device().clone();
    let mut launch = device.launch("gradient sum", 0, 3 * sum.len_bytes() as u64);
    with_float!(sum.dtype(), "gradient sum", T => {
        let n = more.n_elems();
        let (sum, more) = (launch.update::<T>(&mut sum)?, launch.read::<T>(&more)?);
        launch.cuda(|gpu| forms::add_assign(gpu, (&sum, T::DTYPE), (&more, T::DTYPE), n))?;
        launch.run(move |cpu| elementwise::add_assign(cpu, sum.slice(cpu), more.slice(cpu)))
    })?;
    Ok(sum)
}

/// A tensor like `t` with every element `value`.
pub(crate) fn full_like(t: &Tensor, value: f32) -> Result<Tensor> {
    let mut full = Tensor::uninit(*t.shape(), t.dtype(), t.device(), "gradient")?;
    let mut launch = t.device().launch("fill", 0, t.len_bytes() as u64);
    with_float!(t.dtype(), "seed", T => {
        let n = t.n_elems();
        let full = launch.write::<T>(&mut full)?;
        launch.cuda(|gpu| {
            gpu.kernel("fill", &[T::DTYPE])?.view(&full).value(f64::from(value)).u64(n).run(geometry::elements(n))
        })?;
        launch.run(move |cpu| full.slice(cpu).fill(<T as oarlock_kernels::Float>::from_f32(value)))
    })?;
    Ok(full.with_known((t.dtype() == DType::F32).then_some(Known::All(value))))
}
