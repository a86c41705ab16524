//! AVX2 micro-kernel: a 6 x 16 f32 tile in 12 accumulators.

use std::arch::x86_64::*;

use super::kernel::{Out, PACKED, Tile};

const MR: usize = 6;
/// Bytes of one step of a packed panel of A.
const A_STEP: usize = 32;

static ROWS: [[unsafe fn(&Tile); MR]; 2] = [
    [
        rows::<1, false>,
        rows::<2, false>,
        rows::<3, false>,
        rows::<4, false>,
        rows::<5, false>,
        rows::<6, false>,
    ],
    [rows::<1, true>, rows::<2, true>, rows::<3, true>, rows::<4, true>, rows::<5, true>, rows::<6, true>],
];

/// # Safety
/// As [`super::kernel::Micro::tile`], on a CPU with AVX2 and FMA.
pub(super) unsafe fn f32_tile(t: &Tile) {
    // SAFETY: the caller's contract.
    unsafe { ROWS[usize::from(t.a_row_bytes == PACKED)][t.rows - 1](t) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const R: usize, const PACK: bool>(t: &Tile) {
    let mut acc = [[_mm256_setzero_ps(); 2]; R];
    let (row, step) = if PACK { (PACKED, A_STEP) } else { (t.a_row_bytes, 4) };
    let (mut a, mut b) = (t.a, t.b.cast::<f32>());
    for _ in 0..t.steps {
        // SAFETY: the caller promises `steps` words in each row of A and `steps` groups of 16 in B.
        unsafe {
            let (b0, b1) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = _mm256_set1_ps(a.add(r * row).cast::<f32>().read_unaligned());
                acc[0] = _mm256_fmadd_ps(x, b0, acc[0]);
                acc[1] = _mm256_fmadd_ps(x, b1, acc[1]);
            }
            a = a.add(step);
            b = b.add(16);
        }
    }
    let Out::F32(c) = t.c else { return };
    for (r, acc) in acc.iter().enumerate() {
        let p = c.wrapping_add(r * t.c_stride);
        if t.cols == 16 {
            // SAFETY: the caller promises `R` rows of 16 elements.
            unsafe {
                let (mut lo, mut hi) = (acc[0], acc[1]);
                if t.add {
                    lo = _mm256_add_ps(lo, _mm256_loadu_ps(p));
                    hi = _mm256_add_ps(hi, _mm256_loadu_ps(p.add(8)));
                }
                _mm256_storeu_ps(p, lo);
                _mm256_storeu_ps(p.add(8), hi);
            }
        } else {
            let mut row = [0f32; 16];
            // SAFETY: `row` has room for both vectors; C has `cols` elements in this row.
            unsafe {
                _mm256_storeu_ps(row.as_mut_ptr(), acc[0]);
                _mm256_storeu_ps(row.as_mut_ptr().add(8), acc[1]);
                super::kernel_portable::store_row(&row[..t.cols], p, t.add);
            }
        }
    }
}
