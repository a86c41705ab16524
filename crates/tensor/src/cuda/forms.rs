//! Forms of ops that more than one file of [`ops`](crate::ops) uses.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry;
use oarlock_kernels::DType;

use super::{Form, Kernels};
use crate::launch::{View, ViewMut};

/// `y = x` in another dtype of floats, rounded to nearest; or the same one.
pub(crate) fn cast<T, U>(
    gpu: &Kernels<'_>,
    (x, from): (&View<T>, DType),
    (y, to): (&ViewMut<U>, DType),
    n: usize,
) -> Form {
    if from == to {
        return gpu.copy_slice(gpu.slice(x)?, gpu.slice(y)?);
    }
    gpu.kernel("cast", &[from, to])?.view(x).view(y).u64(n).run(geometry::elements(n))
}

/// `sum += x`
pub(crate) fn add_assign<T, U>(
    gpu: &Kernels<'_>,
    (sum, dtype): (&ViewMut<T>, DType),
    (x, of): (&View<U>, DType),
    n: usize,
) -> Form {
    let call = gpu.kernel("axpy", &[dtype, of])?.f32(1.0).view(x).view(sum);
    call.u64(n).run(geometry::elements(n))
}

/// Rows of a table: `y[i] = table[ids[i]]`, each of `dim` elements.
pub(crate) fn gather_rows<T, U>(
    gpu: &Kernels<'_>,
    (table, dtype): (&View<T>, DType),
    ids: &View<i32>,
    (y, to): (&ViewMut<U>, DType),
    [rows, dim]: [usize; 2],
) -> Form {
    let call = gpu.kernel("embed_forward", &[dtype, to])?.view(table).view(ids).view(y);
    call.u32(rows).u32(dim).run(geometry::elements(rows * dim.next_multiple_of(8)))
}

/// `y[ids[i]] = x[i]`, rounded, for rows of `dim` f32 elements and different ids.
pub(crate) fn place_rows<T>(
    gpu: &Kernels<'_>,
    x: Slice<'_>,
    ids: &View<i32>,
    (y, to): (&ViewMut<T>, DType),
    [rows, dim]: [usize; 2],
) -> Form {
    let call = gpu.kernel("place_rows", &[to])?.slice(x).view(ids).view(y);
    call.u32(rows).u32(dim).run(geometry::elements(rows * dim.next_multiple_of(8)))
}
