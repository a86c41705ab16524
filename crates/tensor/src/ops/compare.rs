//! Comparisons of tensors with tensors and numbers, and functions of what they return.
//!
//! The result is a mask: integers (i32), 1 where the comparison holds and 0 elsewhere. `where_cond` and `masked_fill` take
//! masks, and `any`, `all` and `sum` count in them. No gradient flows through a comparison.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry;
use oarlock_kernels::compare::{self as kernel, Compare};
use oarlock_kernels::{DType, Result};

use crate::cuda::{Kernels, forms};
use crate::ops::binary::{spread_strides, together};
use crate::ops::{Operand, beside, check_device, check_dtype, with_float};
use crate::tensor::Tensor;

macro_rules! ops {
    ($($(#[$meta:meta])* $name:ident => $f:ident;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Errors
            /// Shapes that do not broadcast, or integers with floats.
            pub fn $name<'b>(a: &Tensor, b: impl Into<Operand<'b>>) -> Result<Tensor> {
                apply(a, b.into(), Compare::$f, stringify!($name))
            }
        )*
    };
}

ops! {
    /// Where a = b.
    eq => Eq;
    /// Where a ≠ b; NaN differs from itself.
    ne => Ne;
    /// Where a < b.
    lt => Lt;
    /// Where a ≤ b.
    le => Le;
    /// Where a > b.
    gt => Gt;
    /// Where a ≥ b.
    ge => Ge;
    /// Where both are true, that is not 0.
    logical_and => And;
    /// Where at least one is true, that is not 0.
    logical_or => Or;
    /// Where exactly one is true, that is not 0.
    logical_xor => Xor;
}

/// Where x is 0.
///
/// # Errors
/// No memory.
pub fn logical_not(x: &Tensor) -> Result<Tensor> {
    eq(x, 0)
}

/// Where x is NaN.
///
/// # Errors
/// No memory.
pub fn isnan(x: &Tensor) -> Result<Tensor> {
    ne(x, x)
}

/// Where x is infinite.
///
/// # Errors
/// A tensor of integers.
pub fn isinf(x: &Tensor) -> Result<Tensor> {
    eq(&x.abs()?, f32::INFINITY)
}

/// Where x is neither infinite nor NaN.
///
/// # Errors
/// A tensor of integers.
pub fn isfinite(x: &Tensor) -> Result<Tensor> {
    lt(&x.abs()?, f32::INFINITY)
}

fn apply(a: &Tensor, b: Operand<'_>, f: Compare, name: &'static str) -> Result<Tensor> {
    let b = &b.tensor(name, a)?;
    if a.dtype() != b.dtype() && a.dtype().is_float() && b.dtype().is_float() {
        return apply(&a.cast(DType::F32)?, Operand::Tensor(&b.cast(DType::F32)?), f, name);
    }
    check_device(name, a, &[b])?;
    check_dtype(name, a, b)?;
    let (shape, walk) = together(name, a, b)?;
    let strides = [a, b].map(|operand| spread_strides(operand.shape(), &shape));
    let mut mask = Tensor::uninit(shape, DType::I32, a.device(), "mask")?;
    let bytes = (a.len_bytes() + b.len_bytes() + mask.len_bytes()) as u64;
    let mut launch = a.device().launch(name, 0, bytes);
    let (n, dtype) = (mask.n_elems(), a.dtype());
    let out = launch.write(&mut mask)?;
    let form = |gpu: &Kernels<'_>, [a, b]: [Slice<'_>; 2]| {
        let walk = forms::walk(shape.sizes(), [&strides[0], &strides[1]])?;
        let call = gpu.kernel("compare", &[dtype])?.u32(f as usize).walk(&walk).slice(a).slice(b);
        call.view(&out).u64(n).run(geometry::elements(n))
    };
    if dtype == DType::I32 {
        let (a, b) = (launch.read(a)?, launch.read(b)?);
        launch.cuda(|gpu| form(gpu, [gpu.slice(&a)?, gpu.slice(&b)?]))?;
        launch.run(move |cpu| {
            kernel::compare_ints(cpu, f, &walk, a.slice(cpu), b.slice(cpu), out.slice(cpu))
        })?;
    } else {
        with_float!(dtype, name, T => {
            let (a, b) = (launch.read::<T>(a)?, launch.read::<T>(b)?);
            launch.cuda(|gpu| form(gpu, [gpu.slice(&a)?, gpu.slice(&b)?]))?;
            launch.run(move |cpu| kernel::compare(cpu, f, &walk, a.slice(cpu), b.slice(cpu), out.slice(cpu)))
        })?;
    }
    Ok(beside(&[a, b], mask))
}
