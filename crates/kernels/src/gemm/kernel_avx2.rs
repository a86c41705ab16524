//! AVX2 micro-kernel: a 6 x 16 f32 tile in 12 accumulators, written as f32 or bf16.

use std::arch::x86_64::*;

use super::kernel::{Out, PACKED, Tile};
use crate::dtype::bf16;

const MR: usize = 6;
const NR: usize = 16;
/// Bytes of one step of a packed panel of A.
const A_STEP: usize = 32;

type Run = unsafe fn(&Tile);

/// By output (f32, bf16), whether A is packed, and rows.
static ROWS: [[[Run; MR]; 2]; 2] =
    [[of::<false, false>(), of::<true, false>()], [of::<false, true>(), of::<true, true>()]];

const fn of<const PACK: bool, const BF16: bool>() -> [Run; MR] {
    [
        rows::<1, PACK, BF16>,
        rows::<2, PACK, BF16>,
        rows::<3, PACK, BF16>,
        rows::<4, PACK, BF16>,
        rows::<5, PACK, BF16>,
        rows::<6, PACK, BF16>,
    ]
}

/// # Safety
/// As [`super::kernel::Micro::tile`], on a CPU with AVX2 and FMA.
pub(super) unsafe fn f32_tile(t: &Tile) {
    let to_bf16 = matches!(t.c, Out::Bf16(_));
    // SAFETY: the caller's contract.
    unsafe { ROWS[usize::from(to_bf16)][usize::from(t.a_row_bytes == PACKED)][t.rows - 1](t) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const R: usize, const PACK: bool, const BF16: bool>(t: &Tile) {
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
            b = b.add(NR);
        }
    }
    for (r, acc) in acc.iter().enumerate() {
        // SAFETY: the caller promises `R` rows of `cols` elements, and this function has the features.
        unsafe {
            match t.c {
                Out::F32(c) if !BF16 => put(c.wrapping_add(r * t.c_stride), *acc, t),
                Out::Bf16(c) if BF16 => put_bf16(c.wrapping_add(r * t.c_stride), *acc, t),
                _ => {}
            }
        }
    }
}

/// Writes or adds a row of a tile.
///
/// # Safety
/// On a CPU with AVX2; `p` must be valid for `t.cols` elements.
#[inline(always)]
unsafe fn put(p: *mut f32, x: [__m256; 2], t: &Tile) {
    // SAFETY: the caller's contract; the array has room for both vectors.
    unsafe {
        if t.cols == NR {
            let [mut lo, mut hi] = x;
            if t.add {
                lo = _mm256_add_ps(lo, _mm256_loadu_ps(p));
                hi = _mm256_add_ps(hi, _mm256_loadu_ps(p.add(8)));
            }
            _mm256_storeu_ps(p, lo);
            _mm256_storeu_ps(p.add(8), hi);
        } else {
            let mut row = [0f32; NR];
            _mm256_storeu_ps(row.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(row.as_mut_ptr().add(8), x[1]);
            super::kernel_portable::store_row(&row[..t.cols], p, t.add);
        }
    }
}

/// Writes or adds a row of a tile, rounded to nearest, ties to even.
///
/// # Safety
/// On a CPU with AVX2; `p` must be valid for `t.cols` elements.
#[inline(always)]
unsafe fn put_bf16(p: *mut bf16, x: [__m256; 2], t: &Tile) {
    // SAFETY: the caller's contract; the array has room for a whole row.
    unsafe {
        let mut row = [bf16::ZERO; NR];
        let whole = t.cols == NR;
        if t.add && !whole {
            p.copy_to_nonoverlapping(row.as_mut_ptr(), t.cols);
        }
        let to: *mut __m128i = if whole { p.cast() } else { row.as_mut_ptr().cast() };
        let mut rounded = [_mm256_setzero_si256(); 2];
        for (h, (rounded, mut x)) in rounded.iter_mut().zip(x).enumerate() {
            if t.add {
                let old = _mm256_cvtepu16_epi32(_mm_loadu_si128(to.add(h)));
                x = _mm256_add_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32::<16>(old)));
            }
            let bits = _mm256_castps_si256(x);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let quiet_nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            *rounded = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(up, quiet_nan, is_nan));
        }
        // Packing takes turns between halves of the two.
        let packed = _mm256_permute4x64_epi64::<0xd8>(_mm256_packus_epi32(rounded[0], rounded[1]));
        _mm256_storeu_si256(to.cast(), packed);
        if !whole {
            p.copy_from_nonoverlapping(row.as_ptr(), t.cols);
        }
    }
}
