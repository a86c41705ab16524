//! Forms of ops that more than one file of [`ops`](crate::ops) uses.

use std::ops::Range;

use oarlock_cuda::driver::Slice;
use oarlock_cuda::{Walk, geometry};
use oarlock_kernels::copy::Window;
use oarlock_kernels::reduce::Dims;
use oarlock_kernels::{DType, Store};

use super::{Form, FormError, Found, Kernels, failed};
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

/// These bytes of device memory.
pub(crate) fn part(slice: Slice<'_>, bytes: Range<usize>) -> Found<Slice<'_>> {
    Ok(slice.part(bytes).map_err(failed)?)
}

/// The order in which kernels read two operands for an output of these sizes.
pub(crate) fn walk(sizes: &[usize], strides: [&[usize]; 2]) -> Found<Walk> {
    Walk::new(sizes, strides).ok_or(FormError::NoForm)
}

/// `y = x` in the order of the strides, from x's first element on.
pub(crate) fn strided(
    gpu: &Kernels<'_>,
    dtype: DType,
    (sizes, strides): (&[usize], &[usize]),
    [x, y]: [Slice<'_>; 2],
) -> Form {
    let (walk, n) = (walk(sizes, [strides, strides])?, y.bytes() / dtype.size());
    gpu.kernel("strided", &[dtype])?.walk(&walk).slice(x).slice(y).u64(n).run(geometry::elements(n))
}

/// `part = window of whole`
pub(crate) fn read_window(
    gpu: &Kernels<'_>,
    dtype: DType,
    window: Window,
    [whole, part]: [Slice<'_>; 2],
) -> Form {
    if part.bytes() == 0 {
        return Ok(());
    }
    if let Some(place) = only_block(dtype, window, part) {
        return gpu.copy_slice(self::part(whole, place)?, part);
    }
    let n = part.bytes() / dtype.size();
    let call = gpu.kernel("read_window", &[dtype])?.u32(window.full).u32(window.first).u32(window.len);
    call.slice(whole).slice(part).u64(n).run(geometry::elements(n))
}

/// `window of whole = part`, or `+= part`.
pub(crate) fn write_window(
    gpu: &Kernels<'_>,
    (dtype, adds): (DType, bool),
    window: Window,
    [part, whole]: [Slice<'_>; 2],
) -> Form {
    if part.bytes() == 0 {
        return Ok(());
    }
    if let Some(place) = only_block(dtype, window, part).filter(|_| !adds) {
        return gpu.copy_slice(part, self::part(whole, place)?);
    }
    let n = part.bytes() / dtype.size();
    let call = gpu.kernel(if adds { "add_window" } else { "write_window" }, &[dtype])?;
    let call = call.u32(window.full).u32(window.first).u32(window.len);
    call.slice(part).slice(whole).u64(n).run(geometry::elements(n))
}

/// The bytes of the window where there is one block of the whole.
fn only_block(dtype: DType, window: Window, part: Slice<'_>) -> Option<Range<usize>> {
    let start = window.first * dtype.size();
    (part.bytes() == window.len * dtype.size()).then(|| start..start + part.bytes())
}

/// Elements of a row that a block of threads adds; of longer rows it adds parts.
const SUM_BLOCK: usize = 4096;

/// `out[o, i] = scale * sum over k of x[o, k, i]`, formed in f32.
pub(crate) fn sum(
    gpu: &Kernels<'_>,
    (x, from): (Slice<'_>, DType),
    dims: Dims,
    scale: f32,
    (out, to): (Slice<'_>, DType),
) -> Form {
    let (Dims { outer, n, inner }, f32_bytes) = (dims, size_of::<f32>());
    let n_sums = outer * inner;
    if n_sums == 0 {
        return Ok(());
    }
    // The kernels round sums to f32 or to the dtype of the terms.
    if from != to && to != DType::F32 {
        let sums = gpu.temporary(f32_bytes * n_sums)?;
        let f32s = sums.part(0, f32_bytes * n_sums)?;
        sum(gpu, (x, from), dims, scale, (f32s, DType::F32))?;
        let call = gpu.kernel("cast", &[DType::F32, to])?.slice(f32s).slice(out);
        return call.u64(n_sums).run(geometry::elements(n_sums));
    }
    if inner != 1 {
        return gpu.sum_rows(scale, (x, from), [outer, n, inner], (out, to, Store::Overwrite));
    }
    let of_rows = |scale, x, dtype, out, [rows, dim]: [usize; 2]| {
        let call = gpu.kernel("sum_last", &[from, dtype])?.f32(scale).slice(x).slice(out).u32(0);
        call.u32(rows).u32(dim).run(geometry::rows(rows, dim))
    };
    let (n_whole, rest) = (n / SUM_BLOCK, n % SUM_BLOCK);
    if n_whole < 4 || (outer > 1 && rest > 0) {
        return of_rows(scale, x, to, out, [outer, n]);
    }
    // A long row would be the work of one block.
    let n_parts = n.div_ceil(SUM_BLOCK);
    let bytes = f32_bytes * outer * n_parts;
    let (sums, whole) = (gpu.temporary(bytes)?, outer * n_whole);
    let end = whole * SUM_BLOCK * from.size();
    of_rows(1.0, part(x, 0..end)?, DType::F32, sums.part(0, f32_bytes * whole)?, [whole, SUM_BLOCK])?;
    if rest > 0 {
        let last = sums.part(f32_bytes * whole, f32_bytes)?;
        of_rows(1.0, part(x, end..x.bytes())?, DType::F32, last, [1, rest])?;
    }
    let dims = Dims { outer, n: n_parts, inner: 1 };
    sum(gpu, (sums.part(0, bytes)?, DType::F32), dims, scale, (out, to))
}
