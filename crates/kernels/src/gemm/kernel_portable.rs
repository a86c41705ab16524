//! The micro-kernel in plain Rust: a 4 x 8 f32 tile.

use super::kernel::{Out, PACKED, Tile};
use crate::multiply_add::MultiplyAdd;

const MR: usize = 4;
const NR: usize = 8;
/// Bytes of one step of a packed panel of A.
const A_STEP: usize = 16;

/// # Safety
/// As [`super::kernel::Micro::tile`].
pub(super) unsafe fn f32_tile<M: MultiplyAdd>(t: &Tile) {
    let packed = t.a_row_bytes == PACKED;
    // SAFETY: the caller's contract.
    unsafe {
        match (t.rows, packed) {
            (1, true) => rows::<M, 1, true>(t),
            (2, true) => rows::<M, 2, true>(t),
            (3, true) => rows::<M, 3, true>(t),
            (_, true) => rows::<M, MR, true>(t),
            (1, false) => rows::<M, 1, false>(t),
            (2, false) => rows::<M, 2, false>(t),
            (3, false) => rows::<M, 3, false>(t),
            (_, false) => rows::<M, MR, false>(t),
        }
    }
}

unsafe fn rows<M: MultiplyAdd, const R: usize, const PACK: bool>(t: &Tile) {
    let mut acc = [[0f32; NR]; R];
    let (row, step) = if PACK { (PACKED, A_STEP) } else { (t.a_row_bytes, 4) };
    let (mut a, mut b) = (t.a, t.b.cast::<[f32; NR]>());
    for _ in 0..t.steps {
        // SAFETY: the caller promises `steps` words in each row of A and `steps` groups of 8 in B.
        unsafe {
            let y = b.read_unaligned();
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = a.add(r * row).cast::<f32>().read_unaligned();
                *acc = M::lanes([x; NR], y, *acc);
            }
            a = a.add(step);
            b = b.add(1);
        }
    }
    let Out::F32(c) = t.c else { return };
    for (r, acc) in acc.iter().enumerate() {
        // SAFETY: the caller promises `R` rows of `cols` elements.
        unsafe { store_row(&acc[..t.cols], c.add(r * t.c_stride), t.add) }
    }
}

/// Writes or adds one row of a tile.
///
/// # Safety
/// `c` must be valid for `row.len()` elements.
#[inline(always)]
pub(super) unsafe fn store_row(row: &[f32], c: *mut f32, add: bool) {
    for (i, &x) in row.iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            let p = c.add(i);
            *p = if add { x + *p } else { x };
        }
    }
}
