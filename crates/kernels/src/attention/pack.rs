//! Operands in the order in which the register tiles read them, zero where they are padded.

use bytemuck::cast_slice;

use super::tile::{COLS, Kernel, LANES};
use crate::dtype::Float;

/// Rows of a page of a cache.
pub(super) const PAGE: usize = 64;

/// One head of a [sequence, heads, head_dim] tensor: `n` rows from `first` on, `stride` elements apart.
#[derive(Clone, Copy)]
pub(super) struct HeadRows<'a, T> {
    /// All rows, unless they lie in pages.
    whole: &'a [T],
    /// Each of [`PAGE`] rows.
    pages: &'a [&'a [T]],
    /// Where the head begins in a row.
    offset: usize,
    stride: usize,
    head_dim: usize,
    first: usize,
    n: usize,
}

impl<'a, T> HeadRows<'a, T> {
    /// Rows of `head` in `data`, which starts at the sequence's first row; `heads` heads in all.
    pub(super) fn new(data: &'a [T], n: usize, head: usize, heads: usize, head_dim: usize) -> Self {
        let (offset, stride) = (head * head_dim, heads * head_dim);
        HeadRows { whole: data, pages: &[], offset, stride, head_dim, first: 0, n }
    }

    /// As [`HeadRows::new`], of rows that lie in pages. A single page may have any number of them.
    pub(super) fn in_pages(
        pages: &'a [&'a [T]],
        n: usize,
        head: usize,
        heads: usize,
        head_dim: usize,
    ) -> Self {
        match pages {
            [whole] => HeadRows::new(whole, n, head, heads, head_dim),
            _ => HeadRows { pages, ..HeadRows::new(&[], n, head, heads, head_dim) },
        }
    }

    /// The rows `start .. start + n`.
    pub(super) fn skip(self, start: usize, n: usize) -> Self {
        HeadRows { first: self.first + start, n, ..self }
    }

    /// A row.
    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> &'a [T] {
        let at = self.first + i;
        let (rows, at) = match self.pages.get(at / PAGE) {
            Some(page) => (*page, at % PAGE),
            None => (self.whole, at),
        };
        &rows[at * self.stride + self.offset..][..self.head_dim]
    }
}

/// Units of a row: pairs along the head dimension for a product over it.
#[inline(always)]
fn fill_units<T: Float, K: Kernel>(row: &[T], units: &mut [u32]) {
    if K::PAIR == 1 {
        for (unit, x) in units.iter_mut().zip(row) {
            *unit = x.to_f32().to_bits();
        }
    } else {
        let row: &[u16] = cast_slice(row);
        let pairs = row.chunks_exact(2);
        if let [last] = pairs.remainder() {
            units[row.len() / 2] = u32::from(*last);
        }
        for (unit, pair) in units.iter_mut().zip(pairs) {
            *unit = u32::from(pair[0]) | u32::from(pair[1]) << 16;
        }
    }
}

/// Row-major: `dst` holds rows of `units` units; rows past the source's are zero.
#[inline(always)]
pub(super) fn rows<T: Float, K: Kernel>(src: HeadRows<T>, units: usize, dst: &mut [u32]) {
    for (i, dst) in dst.chunks_exact_mut(units).enumerate() {
        if i < src.n {
            fill_units::<T, K>(src.row(i), dst);
        } else {
            dst.fill(0);
        }
    }
}

/// Panels for a product over the rows: `dst` holds, for each 32 columns, `steps` rows of 32 units across rows.
#[inline(always)]
pub(super) fn panels<T: Float, K: Kernel>(src: HeadRows<T>, steps: usize, dst: &mut [u32]) {
    for (panel, dst) in dst.chunks_exact_mut((steps * COLS).max(1)).enumerate() {
        let first = panel * COLS;
        let cols = (src.head_dim - first).min(COLS);
        for (step, units) in dst.chunks_exact_mut(COLS).enumerate() {
            if cols < COLS || step * K::PAIR + K::PAIR > src.n {
                units.fill(0);
            }
            if step * K::PAIR >= src.n {
                continue;
            }
            let row = &src.row(step * K::PAIR)[first..first + cols];
            if K::PAIR == 1 {
                for (unit, x) in units.iter_mut().zip(row) {
                    *unit = x.to_f32().to_bits();
                }
            } else {
                let row: &[u16] = cast_slice(row);
                if step * 2 + 1 < src.n {
                    let next: &[u16] = cast_slice(&src.row(step * 2 + 1)[first..first + cols]);
                    for ((unit, x), y) in units.iter_mut().zip(row).zip(next) {
                        *unit = u32::from(*x) | u32::from(*y) << 16;
                    }
                } else {
                    for (unit, x) in units.iter_mut().zip(row) {
                        *unit = u32::from(*x);
                    }
                }
            }
        }
    }
}

/// The transposed panel of up to 32 rows: `dst` holds `units` rows of 32 units along the head dimension.
/// `staging` has room for 32 rows of `units`, rounded up to 16.
///
/// # Safety
/// As for [`Kernel`].
#[inline(always)]
pub(super) unsafe fn transposed<T: Float, K: Kernel>(
    src: HeadRows<T>,
    units: usize,
    dst: &mut [u32],
    staging: &mut [u32],
) {
    let ld = units.next_multiple_of(LANES);
    let staging = &mut staging[..COLS * ld];
    rows::<T, K>(src, units, &mut staging[..COLS * units]);
    let dst = &mut dst[..ld * COLS];
    for half in [0, LANES] {
        for unit in (0..ld).step_by(LANES) {
            // SAFETY: 16 rows of `units` from `half` on lie in `staging`, which is a multiple of 16 units longer
            // than the last one starts; 16 rows of `dst` from `unit` on have 32 columns.
            unsafe {
                let src = staging.as_ptr().add(half * units + unit);
                K::transpose(src, units, dst.as_mut_ptr().add(unit * COLS + half), COLS);
            }
        }
    }
}
