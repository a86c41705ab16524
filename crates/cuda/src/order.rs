//! The stable order of rows by an id that each has, made on the GPU: what `embed_backward` and `add_rows` take.

use crate::driver::{Arg, Slice, Stream};
use crate::element::Element::{I32, U32};
use crate::error::Result;
use crate::geometry::Geometry;
use crate::modules::Modules;
use crate::table::{self, THREADS};

/// Rows of a block.
const TILE_KEYS: usize = 8 * THREADS as usize;
/// Bits of an id by which a pass orders.
const DIGIT_BITS: u32 = 4;

/// Of the kernels that look at all rows.
pub fn tiles(n: usize) -> Geometry {
    Geometry { grid: [n.div_ceil(TILE_KEYS).max(1) as u32, 1, 1], threads: THREADS, shared_bytes: 0 }
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
        let (ids, n) = (Arg::memory(I32, self.ids), Arg::u32(self.n as u32));
        let counts = Arg::memory(U32, self.counts);
        let tiles = tiles(self.n);
        let one = Geometry { grid: [1, 1, 1], ..tiles };
        let launch = |op: &str, geometry: Geometry, args: &[Arg<'_>]| -> Result<()> {
            let instance = table::find(op).and_then(|kernel| kernel.instance(&[], None));
            // The table has the kernels of this file; a test launches all of them.
            let Some(instance) = instance else { return Ok(()) };
            // SAFETY: the caller's promise.
            unsafe { stream.launch(&*modules.function(&instance)?, geometry, args) }
        };
        // The first pass takes the rows in their own order.
        let (mut order, mut done) = (Arg::null(I32), self.order[0]);
        for (i, shift) in shifts(self.bound).enumerate() {
            let shift = Arg::u32(shift);
            done = self.order[i % 2];
            launch("order_count", tiles, &[ids, order, counts, shift, n])?;
            launch("order_scan", one, &[counts, Arg::u32(tiles.grid[0] << DIGIT_BITS)])?;
            launch("order_place", tiles, &[ids, order, counts, Arg::memory(I32, done), shift, n])?;
            order = Arg::memory(I32, done);
        }
        launch("group_count", tiles, &[ids, order, counts, n])?;
        launch("order_scan", one, &[counts, Arg::u32(tiles.grid[0] + 1)])?;
        let (starts, unique) = (Arg::memory(I32, self.starts), Arg::memory(I32, self.unique));
        launch("group_place", tiles, &[ids, order, counts, starts, unique, n])?;
        Ok(done)
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
