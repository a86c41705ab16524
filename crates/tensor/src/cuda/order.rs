//! The order of rows by their ids, and of elements by their keys, made on a GPU.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::order::{self, ById, ByKey};

use super::failed;
use super::form::{FormError, Found, Kernels, Temporary};

impl Kernels<'_> {
    /// The rows of a tensor in the order of their ids, which are below `bound`; at least one.
    pub fn by_id(&self, ids: Slice<'_>, n: usize, bound: usize) -> Found<RowsById> {
        if i32::try_from(n).is_err() {
            return Err(FormError::NoForm);
        }
        let n_counts = order::n_counts(n);
        let memory = self.temporary(4 * (4 * n + 1 + n_counts))?;
        let part = |first: usize, len: usize| memory.part(4 * first, 4 * len);
        let orders = [part(0, n)?, part(n, n)?];
        let by_id = ById {
            ids,
            n,
            bound,
            order: orders,
            starts: part(2 * n, n + 1)?,
            unique: part(3 * n + 1, n)?,
            counts: part(4 * n + 1, n_counts)?,
        };
        self.launched.set(true);
        // SAFETY: the parts have the sizes that are asked for, and the op has compared the ids with its bound.
        let order = unsafe { by_id.run(&self.gpu.stream, &self.gpu.modules) }.map_err(failed)?;
        let is_second = order.address() == orders[1].address();
        Ok(RowsById { memory, n, is_second })
    }

    /// The elements in the order of their rows, which are below `n_rows`, and in each row of their keys: at least one
    /// element, and fewer than 2^31. `f` gets the order.
    pub fn by_key<R>(
        &self,
        [keys, rows]: [Slice<'_>; 2],
        [n, n_rows]: [usize; 2],
        f: impl FnOnce(Slice<'_>) -> Found<R>,
    ) -> Found<R> {
        let n_counts = order::n_counts(n);
        let memory = self.temporary(4 * (2 * n + n_counts))?;
        let part = |first: usize, len: usize| memory.part(4 * first, 4 * len);
        let by_key = ByKey {
            keys,
            rows,
            n,
            n_rows,
            order: [part(0, n)?, part(n, n)?],
            counts: part(2 * n, n_counts)?,
        };
        self.launched.set(true);
        // SAFETY: the parts have the sizes that are asked for, and the caller's rows are below the bound.
        f(unsafe { by_key.run(&self.gpu.stream, &self.gpu.modules) }.map_err(failed)?)
    }
}

/// Rows in the order of their ids: those of `unique[k]` are `order[starts[k]..starts[k + 1]]`, ascending. There are as many
/// entries as rows; the last ones may have no rows.
pub(crate) struct RowsById {
    memory: Temporary,
    n: usize,
    is_second: bool,
}

impl RowsById {
    pub fn order(&self) -> Found<Slice<'_>> {
        self.part(if self.is_second { self.n } else { 0 }, self.n)
    }

    pub fn starts(&self) -> Found<Slice<'_>> {
        self.part(2 * self.n, self.n + 1)
    }

    pub fn unique(&self) -> Found<Slice<'_>> {
        self.part(3 * self.n + 1, self.n)
    }

    fn part(&self, first: usize, len: usize) -> Found<Slice<'_>> {
        self.memory.part(4 * first, 4 * len)
    }
}
