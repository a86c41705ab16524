//! The kernel of AVX2 with FMA: a vector of 16 lanes is two registers.

use std::arch::x86_64::*;

use super::tile::{EXP2, Kernel, LANES, MAGIC, Operands, strip};
use crate::gemm::pack::transpose8;
use crate::isa::vector_methods;

/// AVX2 in f32.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

/// A vector.
type V = [__m256; 2];

/// Lanes of a register.
const HALF: usize = LANES / 2;

/// What the exponent of 2^n has beside `n`.
const BIAS: i32 = 127 << 23;

impl Kernel for Avx2 {
    type V = V;
    const PAIR: usize = 1;
    const STRIP: usize = 2;

    vector_methods! {
        fn splat(x: f32) -> V { [_mm256_set1_ps(x); 2] }
        fn load(p: *const f32) -> V { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(HALF))] }
        fn store(p: *mut f32, x: V) {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(HALF), x[1]);
        }
        fn add(a: V, b: V) -> V { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        fn sub(a: V, b: V) -> V { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
        fn mul(a: V, b: V) -> V { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        fn fma(a: V, b: V, c: V) -> V { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
        fn max(a: V, b: V) -> V { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
        fn sums(x: [V; 4]) -> [f32; 4] {
            // Lane 4 q + i becomes the sum of quarter q of x[i]; then the quarters are added.
            let [a, b, c, d] = x;
            let mut halves = [_mm256_setzero_ps(); 2];
            for (h, half) in halves.iter_mut().enumerate() {
                let ab = _mm256_add_ps(_mm256_unpacklo_ps(a[h], b[h]), _mm256_unpackhi_ps(a[h], b[h]));
                let cd = _mm256_add_ps(_mm256_unpacklo_ps(c[h], d[h]), _mm256_unpackhi_ps(c[h], d[h]));
                *half = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
            }
            let sum = _mm256_add_ps(halves[0], halves[1]);
            let all = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
            let mut out = [0f32; 4];
            _mm_storeu_ps(out.as_mut_ptr(), all);
            out
        }
        fn exp2(x: V) -> V {
            let mut out = x;
            for (out, x) in out.iter_mut().zip(x) {
                let shifted = _mm256_add_ps(x, _mm256_set1_ps(MAGIC));
                let r = _mm256_sub_ps(x, _mm256_sub_ps(shifted, _mm256_set1_ps(MAGIC)));
                let mut y = _mm256_set1_ps(EXP2[5]);
                for c in EXP2[..5].iter().rev() {
                    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(*c));
                }
                let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
                let power = _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(BIAS)));
                // Not less than, so that NaN stays.
                let normal = _mm256_cmp_ps::<_CMP_NLT_UQ>(x, _mm256_set1_ps(-126.0));
                *out = _mm256_and_ps(normal, _mm256_mul_ps(y, power));
            }
            out
        }
        fn keep(x: V, other: V, j: i32, lo: *const i32, hi: *const i32) -> V {
            let j = _mm256_set1_epi32(j);
            let mut out = x;
            for (h, out) in out.iter_mut().enumerate() {
                let before = _mm256_cmpgt_epi32(_mm256_loadu_si256(lo.add(h * HALF).cast()), j);
                let until = _mm256_cmpgt_epi32(_mm256_loadu_si256(hi.add(h * HALF).cast()), j);
                let seen = _mm256_castsi256_ps(_mm256_andnot_si256(before, until));
                *out = _mm256_blendv_ps(other[h], *out, seen);
            }
            out
        }
        fn transpose(src: *const u32, src_ld: usize, dst: *mut u32, dst_ld: usize) {
            for i in (0..LANES).step_by(HALF) {
                for j in (0..LANES).step_by(HALF) {
                    let mut block = [[0u32; HALF]; HALF];
                    for (r, row) in block.iter_mut().enumerate() {
                        *row = src.add((i + r) * src_ld + j).cast::<[u32; HALF]>().read_unaligned();
                    }
                    transpose8(&mut block);
                    for (c, column) in block.iter().enumerate() {
                        dst.add((j + c) * dst_ld + i).cast::<[u32; HALF]>().write_unaligned(*column);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn tile<const W: usize, const ROW_MAJOR: bool, const ADD: bool>(operands: Operands) {
        // SAFETY: the trait's contract; the strips are the tile.
        unsafe {
            // One vector wide, so that what is loaded of the panel serves six rows.
            for w in 0..W {
                alone::<6, 1, ROW_MAJOR, ADD>(operands, 0, w);
            }
            alone::<2, W, ROW_MAJOR, ADD>(operands, 6, 0);
        }
    }
}

/// A strip that is not inlined: among other vectors in use, one of its sums would live in memory.
///
/// # Safety
/// As for [`strip`], on a CPU with AVX2 and FMA.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn alone<const R: usize, const W: usize, const ROW_MAJOR: bool, const ADD: bool>(
    operands: Operands,
    row: usize,
    vector: usize,
) {
    // SAFETY: the caller's contract.
    unsafe { strip::<Avx2, R, W, ROW_MAJOR, ADD>(operands, row, vector) }
}
