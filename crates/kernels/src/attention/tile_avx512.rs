//! The kernels of AVX-512, with and without products of bf16 pairs.

use std::arch::x86_64::*;

use super::tile::{EXP2, Kernel, LANES};
use crate::isa::vector_methods;

/// AVX-512 in f32.
#[derive(Clone, Copy)]
pub(super) struct Avx512;

/// AVX-512 with bf16 pairs as units.
#[derive(Clone, Copy)]
pub(super) struct Avx512Bf16;

/// The methods that both kernels share.
macro_rules! common {
    () => {
        type V = __m512;
        const STRIP: usize = 8;

        vector_methods! {
            fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
            fn load(p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
            fn store(p: *mut f32, x: __m512) { _mm512_storeu_ps(p, x) }
            fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
            fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
            fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
            fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
            fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
            fn sums(x: [__m512; 4]) -> [f32; 4] {
                // Lane 4 q + i becomes the sum of quarter q of x[i]; then the quarters are added.
                let [a, b, c, d] = x;
                let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                let abcd =
                    _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xee>(ab, cd));
                let halves = _mm512_add_ps(abcd, _mm512_shuffle_f32x4::<0x4e>(abcd, abcd));
                let all = _mm512_add_ps(halves, _mm512_shuffle_f32x4::<0xb1>(halves, halves));
                let mut out = [0f32; 4];
                _mm_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps128(all));
                out
            }
            fn exp2(x: __m512) -> __m512 {
                let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
                let r = _mm512_sub_ps(x, n);
                let mut y = _mm512_set1_ps(EXP2[5]);
                for c in EXP2[..5].iter().rev() {
                    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(*c));
                }
                // Not less than, so that NaN stays.
                let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(-126.0));
                _mm512_maskz_scalef_ps(normal, y, n)
            }
            fn keep(x: __m512, other: __m512, j: i32, lo: *const i32, hi: *const i32) -> __m512 {
                let j = _mm512_set1_epi32(j);
                let from = _mm512_cmple_epi32_mask(_mm512_loadu_epi32(lo), j);
                let seen = _mm512_mask_cmpgt_epi32_mask(from, _mm512_loadu_epi32(hi), j);
                _mm512_mask_blend_ps(seen, other, x)
            }
            fn transpose(src: *const u32, src_ld: usize, dst: *mut u32, dst_ld: usize) {
                let mut x = [_mm512_setzero_ps(); LANES];
                for (i, row) in x.iter_mut().enumerate() {
                    *row = _mm512_loadu_ps(src.add(i * src_ld).cast());
                }
                for i in (0..LANES).step_by(2) {
                    let (a, b) = (x[i], x[i + 1]);
                    x[i] = _mm512_unpacklo_ps(a, b);
                    x[i + 1] = _mm512_unpackhi_ps(a, b);
                }
                for i in (0..LANES).step_by(4) {
                    let (a, b) = (_mm512_castps_pd(x[i]), _mm512_castps_pd(x[i + 1]));
                    let (e, f) = (_mm512_castps_pd(x[i + 2]), _mm512_castps_pd(x[i + 3]));
                    x[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, e));
                    x[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, e));
                    x[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, f));
                    x[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, f));
                }
                // Now x[4 g + c] holds, in its quarter q, column 4 q + c of rows 4 g .. 4 g + 4.
                for c in 0..4 {
                    let (a, b, e, f) = (x[c], x[4 + c], x[8 + c], x[12 + c]);
                    let low_ab = _mm512_shuffle_f32x4::<0x44>(a, b);
                    let high_ab = _mm512_shuffle_f32x4::<0xee>(a, b);
                    let low_ef = _mm512_shuffle_f32x4::<0x44>(e, f);
                    let high_ef = _mm512_shuffle_f32x4::<0xee>(e, f);
                    let column = dst.add(c * dst_ld).cast::<f32>();
                    _mm512_storeu_ps(column, _mm512_shuffle_f32x4::<0x88>(low_ab, low_ef));
                    _mm512_storeu_ps(column.add(4 * dst_ld), _mm512_shuffle_f32x4::<0xdd>(low_ab, low_ef));
                    _mm512_storeu_ps(column.add(8 * dst_ld), _mm512_shuffle_f32x4::<0x88>(high_ab, high_ef));
                    _mm512_storeu_ps(column.add(12 * dst_ld), _mm512_shuffle_f32x4::<0xdd>(high_ab, high_ef));
                }
            }
        }
    };
}

impl Kernel for Avx512 {
    common!();
    const PAIR: usize = 1;
}

/// Where the halves of a bf16 row end up when two rows are interleaved: lane c is followed by lane 16 + c.
const INTERLEAVE: [u16; 32] = {
    let mut index = [0; 32];
    let mut c = 0;
    while c < 16 {
        index[2 * c] = c as u16;
        index[2 * c + 1] = 16 + c as u16;
        c += 1;
    }
    index
};

impl Kernel for Avx512Bf16 {
    common!();
    const PAIR: usize = 2;

    vector_methods! {
        fn dot(acc: __m512, a: __m512, b: __m512) -> __m512 {
            _mm512_dpbf16_ps(
                acc,
                std::mem::transmute::<__m512, __m512bh>(a),
                std::mem::transmute::<__m512, __m512bh>(b),
            )
        }
        fn put_row(p: *mut u32, x: [__m512; 2]) {
            _mm512_storeu_si512(
                p.cast(),
                std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(x[1], x[0])),
            )
        }
        fn put_across(p: *mut u32, _ld: usize, x0: [__m512; 2], x1: [__m512; 2]) {
            let index = _mm512_loadu_si512(INTERLEAVE.as_ptr().cast());
            for w in 0..2 {
                let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(x1[w], x0[w]));
                _mm512_storeu_si512(p.add(w * LANES).cast(), _mm512_permutexvar_epi16(index, both));
            }
        }
    }
}
