//! AVX-512 micro-kernels: 14 x 32 tiles in 28 accumulators, f32 by FMA and bf16 by pair dot products.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::kernel::{Out, PACKED, Tile};

const MR: usize = 14;
/// Bytes of one step of a packed panel of A.
const A_STEP: usize = 64;

/// A function per row count, for packed (`true`) or strided A.
macro_rules! by_rows {
    ($f:ident, $packed:literal) => {
        [
            $f::<1, $packed>,
            $f::<2, $packed>,
            $f::<3, $packed>,
            $f::<4, $packed>,
            $f::<5, $packed>,
            $f::<6, $packed>,
            $f::<7, $packed>,
            $f::<8, $packed>,
            $f::<9, $packed>,
            $f::<10, $packed>,
            $f::<11, $packed>,
            $f::<12, $packed>,
            $f::<13, $packed>,
            $f::<14, $packed>,
        ]
    };
}

static F32: [[unsafe fn(&Tile); MR]; 2] = [by_rows!(f32_rows, false), by_rows!(f32_rows, true)];
static BF16: [[unsafe fn(&Tile); MR]; 2] = [by_rows!(bf16_rows, false), by_rows!(bf16_rows, true)];

/// # Safety
/// As [`super::kernel::Micro::tile`], on a CPU with AVX-512 F.
pub(super) unsafe fn f32_tile(t: &Tile) {
    // SAFETY: the caller's contract.
    unsafe { F32[usize::from(t.a_row_bytes == PACKED)][t.rows - 1](t) }
}

/// # Safety
/// As [`super::kernel::Micro::tile`], on a CPU with AVX-512 F, BW and BF16.
pub(super) unsafe fn bf16_tile(t: &Tile) {
    // SAFETY: the caller's contract.
    unsafe { BF16[usize::from(t.a_row_bytes == PACKED)][t.rows - 1](t) }
}

#[target_feature(enable = "avx512f")]
unsafe fn f32_rows<const R: usize, const PACK: bool>(t: &Tile) {
    let mut acc = [[_mm512_setzero_ps(); 2]; R];
    let (row, step) = if PACK { (PACKED, A_STEP) } else { (t.a_row_bytes, 4) };
    let (mut a, mut b) = (t.a, t.b.cast::<f32>());
    for _ in 0..t.steps {
        // SAFETY: the caller promises `steps` words in each row of A and `steps` groups of 32 in B.
        unsafe {
            let (b0, b1) = (_mm512_loadu_ps(b), _mm512_loadu_ps(b.add(16)));
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = _mm512_set1_ps(a.add(r * row).cast::<f32>().read_unaligned());
                acc[0] = _mm512_fmadd_ps(x, b0, acc[0]);
                acc[1] = _mm512_fmadd_ps(x, b1, acc[1]);
            }
            a = a.add(step);
            b = b.add(32);
        }
    }
    if let Out::F32(c) = t.c {
        // SAFETY: the caller promises `R` rows of `cols` elements.
        unsafe { store_f32(t, c, &acc) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn bf16_rows<const R: usize, const PACK: bool>(t: &Tile) {
    let mut acc = [[_mm512_setzero_ps(); 2]; R];
    let (row, step) = if PACK { (PACKED, A_STEP) } else { (t.a_row_bytes, 4) };
    let (mut a, mut b) = (t.a, t.b.cast::<__m512i>());
    for _ in 0..t.steps {
        // SAFETY: the caller promises `steps` words in each row of A and `steps` groups of 32 in B.
        // The transmutes only rename vectors of the same size.
        unsafe {
            let b0: __m512bh = transmute(_mm512_loadu_si512(b));
            let b1: __m512bh = transmute(_mm512_loadu_si512(b.add(1)));
            for (r, acc) in acc.iter_mut().enumerate() {
                let x: __m512bh = transmute(_mm512_set1_epi32(a.add(r * row).cast::<i32>().read_unaligned()));
                acc[0] = _mm512_dpbf16_ps(acc[0], x, b0);
                acc[1] = _mm512_dpbf16_ps(acc[1], x, b1);
            }
            a = a.add(step);
            b = b.add(2);
        }
    }
    match t.c {
        // SAFETY: the caller promises `R` rows of `cols` elements.
        Out::F32(c) => unsafe { store_f32(t, c, &acc) },
        Out::Bf16(c) => {
            let mask = ((1u64 << t.cols) - 1) as u32;
            for (r, acc) in acc.iter().enumerate() {
                // SAFETY: as above; the mask keeps within `cols`.
                unsafe {
                    let p = c.add(r * t.c_stride).cast::<i16>();
                    let (mut lo, mut hi) = (acc[0], acc[1]);
                    if t.add {
                        let old = _mm512_maskz_loadu_epi16(mask, p);
                        lo = _mm512_add_ps(lo, widen(_mm512_castsi512_si256(old)));
                        hi = _mm512_add_ps(hi, widen(_mm512_extracti64x4_epi64::<1>(old)));
                    }
                    _mm512_mask_storeu_epi16(
                        p,
                        mask,
                        transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(hi, lo)),
                    );
                }
            }
        }
    }
}

// These two are inlined whatever the optimizer thinks: a call would force all accumulators through memory, in the loop
// too.

#[inline(always)]
unsafe fn widen(x: __m256i) -> __m512 {
    // SAFETY: the callers have AVX-512 F.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x))) }
}

#[inline(always)]
unsafe fn store_f32<const R: usize>(t: &Tile, c: *mut f32, acc: &[[__m512; 2]; R]) {
    let mask = (1u64 << t.cols) - 1;
    let (m0, m1) = (mask as u16, (mask >> 16) as u16);
    for (r, acc) in acc.iter().enumerate() {
        // SAFETY: the callers have AVX-512 F and promise `R` rows of `cols` elements; the masks keep within them.
        unsafe {
            let p = c.add(r * t.c_stride);
            let (mut lo, mut hi) = (acc[0], acc[1]);
            if t.add {
                lo = _mm512_add_ps(lo, _mm512_maskz_loadu_ps(m0, p));
                hi = _mm512_add_ps(hi, _mm512_maskz_loadu_ps(m1, p.wrapping_add(16)));
            }
            _mm512_mask_storeu_ps(p, m0, lo);
            _mm512_mask_storeu_ps(p.wrapping_add(16), m1, hi);
        }
    }
}
