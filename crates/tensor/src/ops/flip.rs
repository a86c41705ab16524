//! Dims the other way round, and dims turned in a circle.

use oarlock_cuda::geometry;
use oarlock_kernels::copy;
use oarlock_kernels::reduce::Dims;
use oarlock_kernels::{Error, Result};

use crate::ints::Ints;
use crate::ops::{concat, dim_of, narrow, with_word};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// The elements along these dims in the opposite order.
///
/// # Errors
/// A dim that x does not have.
pub fn flip(x: &Tensor, dims: impl Ints) -> Result<Tensor> {
    let mut y = x.clone();
    for dim in dims.signed() {
        let dim = dim_of("flip", x, dim)?;
        let recorder = Recorder::new(&[&y], &[])?;
        let flipped = reversed(&y, dim)?;
        y = Recorder::record(recorder, flipped, |_| FlipBackward { dim });
    }
    Ok(y)
}

/// The elements moved along these dims by as many places; those that leave a dim come in again at its other end.
///
/// # Errors
/// A dim that x does not have, or other than one shift for each dim.
pub fn roll(x: &Tensor, shifts: impl Ints, dims: impl Ints) -> Result<Tensor> {
    let (shifts, dims) = (shifts.signed(), dims.signed());
    if shifts.len() != dims.len() {
        return Err(Error::Usage(format!("roll: {shifts:?} is not one shift for each of the dims {dims:?}")));
    }
    let mut y = x.clone();
    for (shift, dim) in shifts.into_iter().zip(dims) {
        let dim = dim_of("roll", x, dim)?;
        let size = x.sizes()[dim];
        let shift = shift.checked_rem_euclid(size as isize).unwrap_or(0).unsigned_abs();
        if shift > 0 {
            y = concat(&[narrow(&y, dim, size - shift..size)?, narrow(&y, dim, 0..size - shift)?], dim)?;
        }
    }
    Ok(y)
}

fn reversed(x: &Tensor, dim: usize) -> Result<Tensor> {
    let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), "activation")?;
    let (before, after) = (&x.sizes()[..dim], &x.sizes()[dim + 1..]);
    let dims = Dims { outer: before.iter().product(), n: x.sizes()[dim], inner: after.iter().product() };
    let mut launch = x.device().launch("flip", 0, 2 * x.len_bytes() as u64);
    let (dtype, n_elems) = (x.dtype(), x.n_elems());
    with_word!(dtype, W => {
        let (x, y) = (launch.read_words::<W>(x)?, launch.write_words::<W>(&mut y)?);
        launch.cuda(|gpu| {
            let call = gpu.kernel("reversed", &[dtype])?.view(&x).view(&y).u32(dims.n).u32(dims.inner);
            call.u64(n_elems).run(geometry::elements(n_elems))
        })?;
        launch.run(move |cpu| copy::reversed(cpu, dims, x.slice(cpu), y.slice(cpu)))
    })?;
    Ok(y)
}

struct FlipBackward {
    dim: usize,
}

impl Function for FlipBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        cx.give(0, reversed(&dy, self.dim)?)
    }
}
