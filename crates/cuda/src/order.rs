//! The stable order of rows by an id that each has, made on the GPU: what `embed_backward` and `add_rows` take.

use crate::driver::{Arg, Slice, Stream};
use crate::element::Element::{I32, U32};
use crate::error::Result;
use crate::geometry::{Geometry, grid};
use crate::modules::Modules;
use crate::table::THREADS;

/// Rows of a block.
const TILE_KEYS: usize = 8 * THREADS as usize;
/// Bits of an id by which a pass orders.
const DIGIT_BITS: u32 = 4;

/// Of the kernels that look at all rows.
pub fn tiles(n: usize) -> Geometry {
    Geometry { grid: grid([n.div_ceil(TILE_KEYS), 1, 1]), threads: THREADS, shared_bytes: 0 }
}

/// The first bit of each pass for ids below `bound`: at least one pass.
pub fn shifts(bound: usize) -> impl Iterator<Item = u32> {
    let bits = usize::BITS - bound.saturating_sub(1).leading_zeros();
    (0..bits.clamp(1, 31)).step_by(DIGIT_BITS as usize)
}

/// Elements of the counts that a pass over `n` rows needs.
pub fn n_counts(n: usize) -> usize {
    (tiles(n).grid[0] as usize) << DIGIT_BITS
}

/// Rows and where their order goes.
#[derive(Clone, Copy)]
pub struct ById<'a> {
    /// The id of each row, i32: 0 or more, and below `bound`.
    pub ids: Slice<'a>,
    /// Rows: at least 1, and below 2^31.
    pub n: usize,
    /// What ids are below.
    pub bound: usize,
    /// Twice `n` elements of i32, one of which becomes the order.
    pub order: [Slice<'a>; 2],
    /// [`n_counts`] elements of u32.
    pub counts: Slice<'a>,
    /// `n + 1` elements of i32: where the rows of each id begin in the order. Behind the last id, all of them are `n`.
    pub starts: Slice<'a>,
    /// `n` elements of i32: the ids, ascending, each once, and -1 behind the last one.
    pub unique: Slice<'a>,
}

/// Launches on a stream.
struct Launches<'s> {
    stream: &'s Stream,
    modules: &'s Modules,
    counts: Arg<'s>,
    n: usize,
}

impl Launches<'_> {
    /// # Safety
    /// As of [`Stream::launch`].
    unsafe fn launch(&self, op: &'static str, geometry: Geometry, args: &[Arg<'_>]) -> Result<()> {
        // The table has the kernels of this file; a test launches all of them.
        let Some(function) = self.modules.find(op, &[], None, None)? else { return Ok(()) };
        // SAFETY: the caller's promise.
        unsafe { self.stream.launch(&function, geometry, args) }
    }

    /// Orders rows by the bits of their ids from each of the shifts on; those that are equal there stay in the order that
    /// `from` is the number of, or in their own. Returns where the new order is.
    ///
    /// # Safety
    /// There are as many ids as rows, and counts for them.
    unsafe fn order(
        &self,
        ids: Slice<'_>,
        shifts: impl Iterator<Item = u32>,
        orders: [Slice<'_>; 2],
        from: Option<usize>,
    ) -> Result<Option<usize>> {
        let (ids, n, tiles) = (Arg::memory(I32, ids), Arg::u32(self.n as u32), tiles(self.n));
        let n_counts = Arg::u32(tiles.grid[0] << DIGIT_BITS);
        let mut from = from;
        for shift in shifts.map(Arg::u32) {
            let to = from.map_or(0, |from| 1 - from);
            let order = from.map_or(Arg::null(I32), |from| Arg::memory(I32, orders[from]));
            let placed = Arg::memory(I32, orders[to]);
            // SAFETY: the caller's promise.
            unsafe {
                self.launch("order_count", tiles, &[ids, order, self.counts, shift, n])?;
                self.launch("order_scan", one(), &[self.counts, n_counts])?;
                self.launch("order_place", tiles, &[ids, order, self.counts, placed, shift, n])?;
            }
            from = Some(to);
        }
        Ok(from)
    }
}

/// Of what one block does.
fn one() -> Geometry {
    Geometry { grid: [1, 1, 1], threads: THREADS, shared_bytes: 0 }
}

impl<'a> ById<'a> {
    /// Makes the order later, in that of the stream, and returns which of the two has it. Nothing waits for the host: kernels
    /// that take the order are told that there are `n` ids.
    ///
    /// # Errors
    /// Those of the modules and of launches.
    ///
    /// # Safety
    /// All memory has as many elements as said, and ids are below the bound.
    pub unsafe fn run(&self, stream: &Stream, modules: &Modules) -> Result<Slice<'a>> {
        let (ids, n, counts) =
            (Arg::memory(I32, self.ids), Arg::u32(self.n as u32), Arg::memory(U32, self.counts));
        let tiles = tiles(self.n);
        let launches = Launches { stream, modules, counts, n: self.n };
        // SAFETY: the caller's promise.
        unsafe {
            let done = launches.order(self.ids, shifts(self.bound), self.order, None)?;
            // There is at least one pass.
            let done = self.order[done.unwrap_or(0)];
            let order = Arg::memory(I32, done);
            launches.launch("group_count", tiles, &[ids, order, counts, n])?;
            launches.launch("order_scan", one(), &[counts, Arg::u32(tiles.grid[0] + 1)])?;
            let (starts, unique) = (Arg::memory(I32, self.starts), Arg::memory(I32, self.unique));
            launches.launch("group_place", tiles, &[ids, order, counts, starts, unique, n])?;
            Ok(done)
        }
    }
}

/// Elements with keys, and where their order goes: row after row, each by its keys, of which equal ones stay in order.
#[derive(Clone, Copy)]
pub struct ByKey<'a> {
    /// The key of each element: 32 bits, compared as u32.
    pub keys: Slice<'a>,
    /// The row of each element, i32: 0 or more, and below `n_rows`.
    pub rows: Slice<'a>,
    /// Elements: at least 1, and below 2^31.
    pub n: usize,
    /// What rows are below.
    pub n_rows: usize,
    /// Twice `n` elements of i32, one of which becomes the order.
    pub order: [Slice<'a>; 2],
    /// [`n_counts`] elements of u32.
    pub counts: Slice<'a>,
}

impl<'a> ByKey<'a> {
    /// As [`ById::run`].
    ///
    /// # Errors
    /// Those of the modules and of launches.
    ///
    /// # Safety
    /// All memory has as many elements as said, and rows are below the bound.
    pub unsafe fn run(&self, stream: &Stream, modules: &Modules) -> Result<Slice<'a>> {
        let launches = Launches { stream, modules, counts: Arg::memory(U32, self.counts), n: self.n };
        let all_bits = (0..u32::BITS).step_by(DIGIT_BITS as usize);
        // SAFETY: the caller's promise.
        unsafe {
            let mut done = launches.order(self.keys, all_bits, self.order, None)?;
            if self.n_rows > 1 {
                done = launches.order(self.rows, shifts(self.n_rows), self.order, done)?;
            }
            Ok(self.order[done.unwrap_or(0)])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_cover_all_bits() {
        let of = |bound| shifts(bound).collect::<Vec<_>>();
        assert_eq!((of(1), of(16), of(17)), (vec![0], vec![0], vec![0, 4]));
        assert_eq!(of(1 << 31).last(), Some(&28));
        assert_eq!((n_counts(1), n_counts(2049)), (16, 32));
    }
}
