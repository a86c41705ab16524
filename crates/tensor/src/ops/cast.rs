//! Conversion between dtypes.

use oarlock_cuda::geometry;
use oarlock_kernels::{DType, Element, Error, Result, elementwise};

use crate::cuda::forms;
use crate::ops::{beside, with_float};
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// x in another dtype. Floats are rounded to nearest; as integers they are rounded toward zero and kept inside the range
/// of i32, and NaN becomes 0. Between floats, the gradient is rounded to x's dtype; integers have none.
///
/// # Errors
/// No memory.
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if !x.dtype().is_float() || !dtype.is_float() {
        return Ok(beside(&[x], with_integers(x, dtype)?));
    }
    let recorder = Recorder::new(&[x], &[])?;
    let y = converted(x, dtype, "activation")?;
    let from = x.dtype();
    Ok(Recorder::record(recorder, y, |recorder| CastBackward { x: recorder.save_recipe(x), from, to: dtype }))
}

/// x in another float dtype, not recorded; the same memory where it is that dtype already.
pub(crate) fn converted(x: &Tensor, dtype: DType, what: &'static str) -> Result<Tensor> {
    if x.dtype() == dtype && dtype.is_float() {
        return Ok(x.detach());
    }
    let mut y = Tensor::uninit(*x.shape(), dtype, x.device(), what)?;
    let bytes = (x.len_bytes() + y.len_bytes()) as u64;
    let mut launch = x.device().launch("cast", 0, bytes);
    with_float!(x.dtype(), "cast", T => with_float!(dtype, "cast", U => {
        let n = x.n_elems();
        let (x, y) = (launch.read::<T>(x)?, launch.write::<U>(&mut y)?);
        launch.cuda(|gpu| forms::cast(gpu, (&x, T::DTYPE), (&y, U::DTYPE), n))?;
        launch.run(move |cpu| elementwise::cast(cpu, x.slice(cpu), y.slice(cpu)))
    }))?;
    Ok(y)
}

/// The same where x is of integers, or is to be.
fn with_integers(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype {
        return Ok(x.detach());
    }
    let mut y = Tensor::uninit(*x.shape(), dtype, x.device(), "activation")?;
    let bytes = (x.len_bytes() + y.len_bytes()) as u64;
    let mut launch = x.device().launch("cast", 0, bytes);
    if dtype == DType::I32 {
        with_float!(x.dtype(), "cast", T => {
            let n = x.n_elems();
            let (x, y) = (launch.read::<T>(x)?, launch.write(&mut y)?);
            launch.cuda(|gpu| {
                gpu.kernel("to_integers", &[T::DTYPE])?.view(&x).view(&y).u64(n).run(geometry::elements(n))
            })?;
            launch.run(move |cpu| elementwise::to_integers(cpu, x.slice(cpu), y.slice(cpu)))
        })?;
    } else {
        with_float!(dtype, "cast", T => {
            let n = x.n_elems();
            let (x, y) = (launch.read(x)?, launch.write::<T>(&mut y)?);
            launch.cuda(|gpu| {
                gpu.kernel("from_integers", &[T::DTYPE])?.view(&x).view(&y).u64(n).run(geometry::elements(n))
            })?;
            launch.run(move |cpu| elementwise::from_integers(cpu, x.slice(cpu), y.slice(cpu)))
        })?;
    }
    Ok(y)
}

struct CastBackward {
    x: Option<Saved>,
    from: DType,
    to: DType,
}

impl Function for CastBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        cx.give(0, converted(&dy, self.from, "gradient")?)
    }

    fn can_replay(&self) -> bool {
        self.x.is_some()
    }

    fn replay(&self, cx: &mut Backward<'_>) -> Result<Tensor> {
        match &self.x {
            Some(x) => converted(&cx.get(x)?, self.to, "replayed"),
            None => Err(Error::Usage("cast: its input was not kept".to_string())),
        }
    }
}
