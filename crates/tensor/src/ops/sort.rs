//! Sorting along a dim, and the largest elements. Equal elements keep their order, and NaN is the largest.

use oarlock_cuda::driver::Slice;
use oarlock_kernels::reduce::Dims;
use oarlock_kernels::sort::{self as kernel, Wanted};
use oarlock_kernels::{DType, Result};

use crate::cuda::{Kernels, indexed};
use crate::ints::Int;
use crate::ops::gather::gather_made;
use crate::ops::{dim_of, with_float, wrong_shape};
use crate::tensor::Tensor;

/// The elements along a dim in order and their indices (i32): from the smallest, or from the largest if `descending`.
/// Equal elements stay in the order of their indices both ways, as with torch's `stable=True`. NaN comes last, or first
/// if `descending`. Gradients go where the elements came from.
///
/// # Errors
/// A dim that x does not have.
pub fn sort(x: &Tensor, dim: impl Int, descending: bool) -> Result<(Tensor, Tensor)> {
    let dim = dim_of("sort", x, dim)?;
    let places = sorted("sort", x, dim, Wanted { k: x.sizes()[dim], descending })?;
    Ok((gather_made(x, dim, &places)?, places))
}

/// The indices (i32) of the elements along a dim in the order of [`sort`]. Not recorded.
///
/// # Errors
/// As [`sort`].
pub fn argsort(x: &Tensor, dim: impl Int, descending: bool) -> Result<Tensor> {
    let dim = dim_of("argsort", x, dim)?;
    sorted("argsort", x, dim, Wanted { k: x.sizes()[dim], descending })
}

/// The `k` largest (or smallest) elements along a dim and their indices (i32), the largest (or smallest) first: the
/// first k of [`sort`].
///
/// # Errors
/// As [`sort`]; more elements than there are.
pub fn topk(x: &Tensor, k: usize, dim: impl Int, largest: bool) -> Result<(Tensor, Tensor)> {
    let dim = dim_of("topk", x, dim)?;
    if k > x.sizes()[dim] {
        return Err(wrong_shape("topk", format!("at least {k} elements along dim {dim}"), x));
    }
    let places = sorted("topk", x, dim, Wanted { k, descending: largest })?;
    Ok((gather_made(x, dim, &places)?, places))
}

fn sorted(op: &'static str, x: &Tensor, dim: usize, wanted: Wanted) -> Result<Tensor> {
    let mut sizes = x.sizes().to_vec();
    if i32::try_from(sizes[dim]).is_err() {
        return Err(wrong_shape(op, format!("at most {} elements along dim {dim}", i32::MAX), x));
    }
    let dims = Dims {
        outer: sizes[..dim].iter().product(),
        n: sizes[dim],
        inner: sizes[dim + 1..].iter().product(),
    };
    sizes[dim] = wanted.k;
    let mut places = Tensor::uninit(&sizes[..], DType::I32, x.device(), "indices")?;
    let mut launch = x.device().launch(op, 0, x.len_bytes() as u64);
    let scratch = launch.scratch::<u64>(x.n_elems())?;
    let dtype = x.dtype();
    let form = |gpu: &Kernels<'_>, [x, places]: [Slice<'_>; 2]| {
        let (sizes, wanted) = ([dims.outer, dims.n, dims.inner], (wanted.k, wanted.descending));
        indexed::first_places(gpu, (x, dtype), sizes, wanted, places)
    };
    if dtype == DType::I32 {
        let (x, places) = (launch.read::<i32>(x)?, launch.write::<i32>(&mut places)?);
        launch.cuda(|gpu| form(gpu, [gpu.slice(&x)?, gpu.slice(&places)?]))?;
        launch.run(move |cpu| {
            kernel::sort_ints(cpu, dims, wanted, x.slice(cpu), places.slice(cpu), scratch.slice(cpu));
        })?;
    } else {
        with_float!(dtype, op, T => {
            let (x, places) = (launch.read::<T>(x)?, launch.write::<i32>(&mut places)?);
            launch.cuda(|gpu| form(gpu, [gpu.slice(&x)?, gpu.slice(&places)?]))?;
            launch.run(move |cpu| {
                kernel::sort(cpu, dims, wanted, x.slice(cpu), places.slice(cpu), scratch.slice(cpu));
            })
        })?;
    }
    Ok(places)
}
