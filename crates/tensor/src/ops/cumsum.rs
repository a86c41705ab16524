//! Running sums along a dim.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry;
use oarlock_kernels::reduce::Dims;
use oarlock_kernels::scan as kernel;
use oarlock_kernels::{DType, Result};

use crate::cuda::Kernels;
use crate::ints::Int;
use crate::ops::{dim_of, with_float};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// Each element plus all before it along a dim, summed in f64 and rounded to the dtype of x.
///
/// # Errors
/// A dim that x does not have.
pub fn cumsum(x: &Tensor, dim: impl Int) -> Result<Tensor> {
    let dim = dim_of("cumsum", x, dim)?;
    let recorder = Recorder::new(&[x], &[])?;
    let y = sums(x, dim, false)?;
    Ok(Recorder::record(recorder, y, |_| CumsumBackward { dim }))
}

fn sums(x: &Tensor, dim: usize, reverse: bool) -> Result<Tensor> {
    let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), "activation")?;
    let (before, after) = (&x.sizes()[..dim], &x.sizes()[dim + 1..]);
    let dims = Dims { outer: before.iter().product(), n: x.sizes()[dim], inner: after.iter().product() };
    let mut launch = x.device().launch("cumsum", 0, 2 * x.len_bytes() as u64);
    let carry = launch.scratch::<f64>(dims.outer * dims.inner)?;
    let dtype = x.dtype();
    let form = |gpu: &Kernels<'_>, [x, y]: [Slice<'_>; 2]| {
        let Dims { outer, n, inner } = dims;
        let grid = if inner == 1 { geometry::losses(outer) } else { geometry::elements(outer * inner) };
        let call = gpu.kernel("cumsum", &[dtype])?.u32(usize::from(reverse)).slice(x).slice(y);
        call.u32(outer).u32(n).u32(inner).run(grid)
    };
    if dtype == DType::I32 {
        let (x, y) = (launch.read::<i32>(x)?, launch.write::<i32>(&mut y)?);
        launch.cuda(|gpu| form(gpu, [gpu.slice(&x)?, gpu.slice(&y)?]))?;
        launch.run(move |cpu| {
            kernel::cumsum_ints(cpu, dims, reverse, x.slice(cpu), y.slice(cpu), carry.slice(cpu));
        })?;
    } else {
        with_float!(dtype, "cumsum", T => {
            let (x, y) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?);
            launch.cuda(|gpu| form(gpu, [gpu.slice(&x)?, gpu.slice(&y)?]))?;
            launch.run(move |cpu| {
                kernel::cumsum(cpu, dims, reverse, x.slice(cpu), y.slice(cpu), carry.slice(cpu));
            })
        })?;
    }
    Ok(y)
}

struct CumsumBackward {
    dim: usize,
}

impl Function for CumsumBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        cx.give(0, sums(&dy, self.dim, true)?)
    }
}
