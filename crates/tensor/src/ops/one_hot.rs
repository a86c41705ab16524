//! Classes as vectors with a single 1.

use oarlock_kernels::indexed::{self as kernel, Along};
use oarlock_kernels::walk::Walk;
use oarlock_kernels::{DType, Result};

use crate::cuda::indexed;
use crate::ops::check_indices;
use crate::tensor::Tensor;

/// Classes (i32) `[..]` → `[.., n_classes]` (i32): 1 at the place of the class, else 0. Not recorded.
///
/// # Errors
/// [`Error::Index`](crate::Error::Index) for a class outside of `0..n_classes`; another dtype.
pub fn one_hot(classes: &Tensor, n_classes: usize) -> Result<Tensor> {
    check_indices("one_hot", classes, classes)?;
    let sizes = [classes.sizes(), &[n_classes]].concat();
    let mut y = Tensor::zeros(&sizes[..], DType::I32, classes.device())?;
    // Each class is a block of one index.
    let along = Along {
        op: "one_hot",
        n_blocks: classes.n_elems(),
        walk: Walk::new(&[], [&[]]),
        n: n_classes,
        step: 1,
    };
    let mut launch = classes.device().launch("one_hot", 0, y.len_bytes() as u64);
    let (ids, marks) = (launch.read::<i32>(classes)?, launch.update::<i32>(&mut y)?);
    let n = classes.n_elems();
    launch.cuda(|gpu| {
        indexed::check(gpu, "one_hot", &ids, n, n_classes)?;
        indexed::put_ones(gpu, &ids, gpu.slice(&marks)?, [n, n_classes])
    })?;
    launch.run(move |cpu| kernel::scatter_value(cpu, &along, 1, ids.slice(cpu), marks.slice(cpu)))?;
    Ok(y)
}
