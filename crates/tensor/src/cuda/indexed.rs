//! Forms of ops with indices. What is written to one place is written or added in the order of the indices, as on a CPU.
//!
//! The host asks for the first index that lies outside before a kernel uses the indices, and waits for the answer. Indices
//! that the host has written itself it knows ([`Known`](crate::tensor::Known)), and those that an op of this crate has made
//! are not asked for.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry::{self, Geometry};
use oarlock_cuda::{Walk, order};
use oarlock_kernels::{DType, Error};

use super::form::{Form, FormError, Found, Kernels};
use super::{forms, order as by_order};
use crate::launch::View;

/// Fails if an index is not in `0..bound`.
pub(crate) fn check(gpu: &Kernels<'_>, op: &'static str, ids: &View<i32>, n: usize, bound: usize) -> Form {
    if ids.known().is_some_and(|known| known.are_indices(bound, None)) {
        return Ok(());
    }
    let launch = |positions: Slice<'_>, grid| {
        let call = gpu.kernel("first_outside", &[])?.view(ids).u32(bound.min(MOST)).slice(positions);
        call.u32(n).run(grid)
    };
    check_by(gpu, op, ids, [n, bound], launch)
}

/// What indices are below at most: they are i32.
const MOST: usize = 1 << 31;

/// The labels with `mark` in the place of those that are ignored; fails if another one is not in `0..bound`.
pub(crate) fn targets(
    gpu: &Kernels<'_>,
    op: &'static str,
    (labels, n, bound): (&View<i32>, usize, usize),
    [ignored, mark]: [i32; 2],
    out: Slice<'_>,
) -> Form {
    let launch = |positions: Slice<'_>, grid| {
        let call = gpu.kernel("targets", &[])?.view(labels).signed(ignored).signed(mark).u32(bound.min(MOST));
        call.slice(out).slice(positions).u32(n).run(grid)
    };
    if labels.known().is_some_and(|known| known.are_indices(bound, Some(ignored))) {
        // The kernel is there for the marks.
        return match n {
            0 => Ok(()),
            _ => {
                let grid = geometry::elements(n);
                let positions = gpu.temporary(4 * grid.grid[0] as usize)?;
                launch(positions.part(0, 4 * grid.grid[0] as usize)?, grid)
            }
        };
    }
    check_by(gpu, op, labels, [n, bound], launch)
}

/// Fails with the first of the positions that a kernel finds, one in each of its blocks.
fn check_by(
    gpu: &Kernels<'_>,
    op: &'static str,
    ids: &View<i32>,
    [n, bound]: [usize; 2],
    launch: impl FnOnce(Slice<'_>, Geometry) -> Form,
) -> Form {
    if n == 0 {
        return Ok(());
    }
    let outside = first_position(gpu, n, geometry::elements(n), launch)?;
    let Some(position) = outside else { return Ok(()) };
    let index = gpu.download(ids)?.get(position).copied().unwrap_or_default();
    Err(Error::Index { op, index: i64::from(index), position, bound }.into())
}

/// The least of the positions that the blocks of a kernel write, if it is one of `n`. The host waits for it.
pub(crate) fn first_position(
    gpu: &Kernels<'_>,
    n: usize,
    grid: Geometry,
    launch: impl FnOnce(Slice<'_>, Geometry) -> Form,
) -> Found<Option<usize>> {
    let bytes = 4 * grid.grid[0] as usize;
    let memory = gpu.temporary(bytes)?;
    let positions = memory.part(0, bytes)?;
    launch(positions, grid)?;
    let positions: Vec<u32> = gpu.download_slice(positions)?;
    Ok(positions.into_iter().min().map(|position| position as usize).filter(|&position| position < n))
}

/// Where the indices of a tensor point in data: the sizes of the indices, how far their places lie apart along each dim,
/// the elements from one index to the next, and all elements of the data.
pub(crate) struct Places<'a> {
    pub sizes: &'a [usize],
    pub strides: &'a [usize],
    pub step: usize,
    pub n_data: usize,
}

impl Places<'_> {
    fn n(&self) -> usize {
        self.sizes.iter().product()
    }

    fn walk(&self) -> Found<Walk> {
        forms::walk(self.sizes, [self.strides, self.strides])
    }

    /// `y[p] = x[place of index p]`
    pub fn gather(&self, gpu: &Kernels<'_>, dtype: DType, ids: &View<i32>, [x, y]: [Slice<'_>; 2]) -> Form {
        let n = self.n();
        if n == 0 {
            return Ok(());
        }
        let call = gpu.kernel("gather", &[dtype])?.walk(&self.walk()?).view(ids).slice(x).slice(y);
        call.u32(self.step).u64(n).run(geometry::elements(n))
    }

    /// The indices by the places that they name.
    fn by_place(&self, gpu: &Kernels<'_>, ids: &View<i32>) -> Found<by_order::RowsById> {
        let (n, walk) = (self.n(), self.walk()?);
        if i32::try_from(n.max(self.n_data)).is_err() {
            return Err(FormError::NoForm);
        }
        let memory = gpu.temporary(4 * n)?;
        let places = memory.part(0, 4 * n)?;
        let call = gpu.kernel("places", &[])?.walk(&walk).view(ids).slice(places);
        call.u32(self.step).u64(n).run(geometry::elements(n))?;
        gpu.by_id(places, n, self.n_data)
    }

    /// `y[place of index p] = source[p]`; of several, the last stays.
    pub fn scatter(
        &self,
        gpu: &Kernels<'_>,
        dtype: DType,
        ids: &View<i32>,
        [source, y]: [Slice<'_>; 2],
    ) -> Form {
        let n = self.n();
        if n == 0 {
            return Ok(());
        }
        let rows = self.by_place(gpu, ids)?;
        let call =
            gpu.kernel("write_rows", &[dtype])?.slice(source).slice(rows.order()?).slice(rows.starts()?);
        call.slice(rows.unique()?).slice(y).u32(n).u32(1).run(geometry::elements(8 * n))
    }

    /// The gradients of [`Places::scatter`]: those of the source are taken out of `dx`.
    pub fn scatter_backward(
        &self,
        gpu: &Kernels<'_>,
        dtype: DType,
        ids: &View<i32>,
        [dx, d_source]: [Slice<'_>; 2],
    ) -> Form {
        let n = self.n();
        if n == 0 {
            return Ok(());
        }
        let rows = self.by_place(gpu, ids)?;
        let call = gpu.kernel("take_rows", &[dtype])?.slice(dx).slice(rows.order()?).slice(rows.starts()?);
        call.slice(rows.unique()?).slice(d_source).u32(n).run(geometry::elements(n))
    }

    /// `sum[place of index p] += source[p]`
    pub fn add(
        &self,
        gpu: &Kernels<'_>,
        dtype: DType,
        ids: &View<i32>,
        [source, sum]: [Slice<'_>; 2],
    ) -> Form {
        let n = self.n();
        if n == 0 {
            return Ok(());
        }
        let rows = self.by_place(gpu, ids)?;
        add_rows(gpu, dtype, &rows, [source, sum], [1, self.n_data, n, 1])
    }
}

/// `sum[o, ids[j]] += x[o, j]` for `n_ids` indices into `n` rows of `inner` elements; sums are f32, or integers.
pub(crate) fn add_at(
    gpu: &Kernels<'_>,
    dtype: DType,
    ids: &View<i32>,
    [x, sum]: [Slice<'_>; 2],
    [outer, n, n_ids, inner]: [usize; 4],
) -> Form {
    if outer * n_ids * inner == 0 {
        return Ok(());
    }
    let rows = gpu.by_id(gpu.slice(ids)?, n_ids, n)?;
    add_rows(gpu, dtype, &rows, [x, sum], [outer, n, n_ids, inner])
}

fn add_rows(
    gpu: &Kernels<'_>,
    dtype: DType,
    rows: &by_order::RowsById,
    [x, sum]: [Slice<'_>; 2],
    [outer, n, n_ids, inner]: [usize; 4],
) -> Form {
    let (op, dtypes, grid) = match dtype {
        DType::I32 => ("add_rows_ints", &[][..], outer * n_ids * inner),
        _ => ("add_rows", &[dtype][..], outer * n_ids * inner.next_multiple_of(8)),
    };
    let call = gpu.kernel(op, dtypes)?.slice(x).slice(rows.order()?).slice(rows.starts()?);
    let call = call.slice(rows.unique()?).slice(sum).u32(outer).u32(n).u32(n_ids).u32(n_ids).u32(inner);
    call.run(geometry::elements(grid))
}

/// `y[o, ids[o, i], i] = x[o, i]` for data `[outer, n, inner]`, an index for each row of the middle dim.
pub(crate) fn put_in_middle(
    gpu: &Kernels<'_>,
    dtype: DType,
    ids: &View<i32>,
    [x, y]: [Slice<'_>; 2],
    [outer, n, inner]: [usize; 3],
) -> Form {
    if outer * inner == 0 {
        return Ok(());
    }
    let walk = forms::walk(&[outer, inner], [&[n * inner, 1]; 2])?;
    let call = gpu.kernel("write_places", &[dtype])?.walk(&walk).view(ids).slice(x).u32(1).slice(y);
    call.u32(inner).u64(outer * inner).run(geometry::elements(outer * inner))
}

/// A 1 at the class of each row of `n_classes` zeros.
pub(crate) fn put_ones(
    gpu: &Kernels<'_>,
    ids: &View<i32>,
    y: Slice<'_>,
    [rows, n_classes]: [usize; 2],
) -> Form {
    if rows == 0 {
        return Ok(());
    }
    let (one, walk) = (gpu.temporary(4)?, forms::walk(&[rows], [&[n_classes]; 2])?);
    let one = one.part(0, 4)?;
    gpu.kernel("fill", &[DType::I32])?.slice(one).value(1.0).u64(1).run(geometry::one_block())?;
    let call = gpu.kernel("write_places", &[DType::I32])?.walk(&walk).view(ids).slice(one).u32(0).slice(y);
    call.u32(1).u64(rows).run(geometry::elements(rows))
}

/// The most elements of a row that passes over the row find one after the other, instead of ordering all of them.
const MOST_PASSES: usize = 16;

/// `places [outer, k, inner]`: where the first `k` elements of `x [outer, n, inner]` in their order are.
pub(crate) fn first_places(
    gpu: &Kernels<'_>,
    (x, dtype): (Slice<'_>, DType),
    [outer, n, inner]: [usize; 3],
    (k, descending): (usize, bool),
    places: Slice<'_>,
) -> Form {
    let (n_elems, n_places, descending) = (outer * n * inner, outer * k * inner, usize::from(descending));
    if n_places == 0 {
        return Ok(());
    }
    if n_elems > i32::MAX as usize || order::n_counts(n_elems) > u32::MAX as usize {
        return Err(FormError::NoForm);
    }
    if inner == 1 && k <= MOST_PASSES {
        let values = gpu.temporary(dtype.size() * n_places)?;
        let values = values.part(0, dtype.size() * n_places)?;
        let call = gpu.kernel("top_k", &[dtype])?.u32(descending).slice(x).slice(values).slice(places);
        return call.u32(outer).u32(n).u32(k).run(geometry::rows(outer, n));
    }
    let memory = gpu.temporary(8 * n_elems)?;
    let [keys, rows] = [memory.part(0, 4 * n_elems)?, memory.part(4 * n_elems, 4 * n_elems)?];
    let grid = geometry::elements(n_elems);
    gpu.kernel("sort_keys", &[dtype])?.u32(descending).slice(x).slice(keys).u64(n_elems).run(grid)?;
    gpu.kernel("sort_rows", &[])?.slice(rows).u32(n).u32(inner).u64(n_elems).run(grid)?;
    gpu.by_key([keys, rows], [n_elems, outer * inner], |order| {
        let call = gpu.kernel("sort_places", &[])?.slice(order).slice(places).u32(n).u32(k).u32(inner);
        call.u64(n_places).run(geometry::elements(n_places))
    })
}
