//! Packing: copies a block of a matrix into panels of words in the order in which the micro-kernels read them.

use std::ops::Range;

use crate::cpu::isa::{Isa, Path};
use crate::dtype::Float;

use super::convert::widen;

/// A matrix as packing sees it: an outer dimension (rows of A, columns of B) and the reduction dimension K.
#[derive(Clone, Copy)]
pub(crate) struct Source<T> {
    /// The first element.
    pub(crate) data: *const T,
    /// Elements between stored rows.
    pub(crate) stride: usize,
    /// The size of the outer dimension.
    pub(crate) extent: usize,
    /// Whether a stored row runs along K (else along the outer dimension).
    pub(crate) k_contiguous: bool,
}

// SAFETY: a `Source` is only read, and `T: Sync` data may be read from any thread.
unsafe impl<T: Sync> Sync for Source<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Send for Source<T> {}

/// The shape of packed panels.
#[derive(Clone, Copy)]
pub(crate) struct Panels {
    /// Outer indices in a panel.
    pub(crate) used: usize,
    /// Words of one step of a panel, at least `used`; a multiple of the vector length. What the rest holds is unspecified.
    pub(crate) width: usize,
    /// Words between panels.
    pub(crate) stride: usize,
    /// Whether words are pairs of bf16.
    pub(crate) pairs: bool,
}

/// Packs `outer` x `k` of `src` into consecutive panels at `dst`. Outer indices beyond the
/// matrix, and the second half of the last pair of an odd `k`, become zero.
///
/// # Safety
/// The ranges must lie inside the matrix, and `dst` must be valid for all panels (`stride` words each).
pub(crate) unsafe fn pack<T: Float>(
    isa: Isa,
    src: &Source<T>,
    outer: Range<usize>,
    k: Range<usize>,
    panels: Panels,
    dst: *mut u32,
) {
    // SAFETY: the caller's contract; an `Isa` proves its features.
    unsafe {
        match isa.path() {
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 | Path::Avx512Bf16 if panels.pairs => x86::pairs512(src, outer, k, panels, dst),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 | Path::Avx512Bf16 => x86::words512(src, outer, k, panels, dst),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => x86::words256(src, outer, k, panels, dst),
            _ => body::<T, false, 4>(src, outer, k, panels, dst, portable_transpose),
        }
    }
}

/// Steps that are copied from every panel before the next: few enough that the rows in flight keep their pages in the
/// first-level TLB, enough that each panel gets whole pages of writes.
const STEPS_AT_ONCE: usize = 8;

#[inline(always)]
unsafe fn body<T: Float, const PAIRS: bool, const L: usize>(
    src: &Source<T>,
    outer: Range<usize>,
    k: Range<usize>,
    panels: Panels,
    dst: *mut u32,
    transpose: impl Fn(&mut [[u32; L]; L]),
) {
    let per_step = if PAIRS { 2 } else { 1 };
    let n_k = k.len();
    let steps = n_k.div_ceil(per_step);
    let n_panels = outer.len().div_ceil(panels.used);
    // The first outer index in lanes `lane..lane + L` of panel `p`, and how many of them exist.
    let lanes = |p: usize, lane: usize| {
        let first = outer.start + p * panels.used + lane;
        (first, src.extent.saturating_sub(first).min(L))
    };
    if src.k_contiguous {
        for p in 0..n_panels {
            for lane in (0..panels.width).step_by(L) {
                let (first, n) = lanes(p, lane);
                for s in (0..steps).step_by(L) {
                    let left = n_k - s * per_step;
                    let mut block = [[0u32; L]; L];
                    // SAFETY: rows `first..first + n` exist and have `left` elements from here; the panel has
                    // `steps` groups of `width` words.
                    unsafe {
                        let from = src.data.wrapping_add(first * src.stride + k.start + s * per_step);
                        if left >= L * per_step {
                            for (r, row) in block.iter_mut().take(n).enumerate() {
                                *row = along_k::<T, PAIRS, L>(from.add(r * src.stride));
                            }
                        } else {
                            for (r, row) in block.iter_mut().take(n).enumerate() {
                                let mut edge = [[T::zeroed(); L]; 2];
                                let n_edge = left.min(L * per_step);
                                let flat = edge.as_flattened_mut().as_mut_ptr();
                                from.add(r * src.stride).copy_to_nonoverlapping(flat, n_edge);
                                *row = along_k::<T, PAIRS, L>(flat);
                            }
                        }
                        transpose(&mut block);
                        let to = dst.add(p * panels.stride + s * panels.width + lane);
                        for (i, row) in block.iter().take(steps - s).enumerate() {
                            to.add(i * panels.width).cast::<[u32; L]>().write_unaligned(*row);
                        }
                    }
                }
            }
        }
    } else {
        for s0 in (0..steps).step_by(STEPS_AT_ONCE) {
            for p in 0..n_panels {
                for lane in (0..panels.width).step_by(L) {
                    let (first, n) = lanes(p, lane);
                    for s in s0..(s0 + STEPS_AT_ONCE).min(steps) {
                        let row = k.start + s * per_step;
                        let second = PAIRS && row + 1 < k.end;
                        // SAFETY: the rows exist and have outer indices `first..first + n`; the panel has `steps`
                        // groups of `width` words.
                        unsafe {
                            let from = src.data.wrapping_add(row * src.stride + first);
                            let to = dst.add(p * panels.stride + s * panels.width + lane).cast::<[u32; L]>();
                            let word = if n == L && (second || !PAIRS) {
                                across::<T, PAIRS, L>(from, from.wrapping_add(src.stride))
                            } else {
                                let mut edge = [[T::zeroed(); L]; 2];
                                from.copy_to_nonoverlapping(edge[0].as_mut_ptr(), n);
                                if second {
                                    from.add(src.stride).copy_to_nonoverlapping(edge[1].as_mut_ptr(), n);
                                }
                                across::<T, PAIRS, L>(edge[0].as_ptr(), edge[1].as_ptr())
                            };
                            to.write_unaligned(word);
                        }
                    }
                }
            }
        }
    }
}

/// `L` words along K.
///
/// # Safety
/// `p` must be valid for `L` elements, or `2 * L` 16-bit ones if `PAIRS`.
#[inline(always)]
unsafe fn along_k<T: Float, const PAIRS: bool, const L: usize>(p: *const T) -> [u32; L] {
    // SAFETY: the caller's contract.
    unsafe {
        if PAIRS { p.cast::<[u32; L]>().read_unaligned() } else { words(p.cast::<[T; L]>().read_unaligned()) }
    }
}

/// `L` words across K: one element of each of `L` outer indices, or pairs from two stored rows.
///
/// # Safety
/// `p` (and `q` if `PAIRS`) must be valid for `L` elements, of 16 bits if `PAIRS`.
#[inline(always)]
unsafe fn across<T: Float, const PAIRS: bool, const L: usize>(p: *const T, q: *const T) -> [u32; L] {
    // SAFETY: the caller's contract.
    unsafe {
        if PAIRS {
            let (lo, hi) = (p.cast::<[u16; L]>().read_unaligned(), q.cast::<[u16; L]>().read_unaligned());
            std::array::from_fn(|i| u32::from(lo[i]) | u32::from(hi[i]) << 16)
        } else {
            words(p.cast::<[T; L]>().read_unaligned())
        }
    }
}

#[inline(always)]
fn words<T: Float, const L: usize>(x: [T; L]) -> [u32; L] {
    std::array::from_fn(|i| widen(x[i]).to_bits())
}

#[inline(always)]
fn portable_transpose<const L: usize>(block: &mut [[u32; L]; L]) {
    let from = *block;
    *block = std::array::from_fn(|i| std::array::from_fn(|j| from[j][i]));
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The same body with vector transposes.

    use std::arch::x86_64::*;
    use std::mem::transmute;
    use std::ops::Range;

    use super::{Panels, Source, body};
    use crate::dtype::Float;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn pairs512<T: Float>(
        src: &Source<T>,
        outer: Range<usize>,
        k: Range<usize>,
        panels: Panels,
        dst: *mut u32,
    ) {
        // SAFETY: the caller's contract.
        unsafe { body::<T, true, 16>(src, outer, k, panels, dst, |b| transpose16(b)) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn words512<T: Float>(
        src: &Source<T>,
        outer: Range<usize>,
        k: Range<usize>,
        panels: Panels,
        dst: *mut u32,
    ) {
        // SAFETY: the caller's contract.
        unsafe { body::<T, false, 16>(src, outer, k, panels, dst, |b| transpose16(b)) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn words256<T: Float>(
        src: &Source<T>,
        outer: Range<usize>,
        k: Range<usize>,
        panels: Panels,
        dst: *mut u32,
    ) {
        // SAFETY: the caller's contract.
        unsafe { body::<T, false, 8>(src, outer, k, panels, dst, |b| transpose8(b)) }
    }

    /// Inlined into functions with AVX-512 F, so that the block stays in registers.
    #[inline(always)]
    unsafe fn transpose16(block: &mut [[u32; 16]; 16]) {
        // SAFETY: the callers have the instructions; arrays and vectors have the same size and plain bits.
        unsafe {
            let x: [__m512i; 16] = transmute(*block);
            let mut y = x;
            for i in 0..8 {
                y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
                y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
            }
            let mut z = y;
            for i in 0..4 {
                let q = 4 * i;
                z[q] = _mm512_unpacklo_epi64(y[q], y[q + 2]);
                z[q + 1] = _mm512_unpackhi_epi64(y[q], y[q + 2]);
                z[q + 2] = _mm512_unpacklo_epi64(y[q + 1], y[q + 3]);
                z[q + 3] = _mm512_unpackhi_epi64(y[q + 1], y[q + 3]);
            }
            // Now lane group g of z[4 i + j] is column 4 g + j of rows 4 i .. 4 i + 4: transpose the 4 x 4 groups.
            let mut out = z;
            for j in 0..4 {
                let lo = _mm512_shuffle_i32x4::<0x44>(z[j], z[4 + j]);
                let hi = _mm512_shuffle_i32x4::<0xee>(z[j], z[4 + j]);
                let lo2 = _mm512_shuffle_i32x4::<0x44>(z[8 + j], z[12 + j]);
                let hi2 = _mm512_shuffle_i32x4::<0xee>(z[8 + j], z[12 + j]);
                out[j] = _mm512_shuffle_i32x4::<0x88>(lo, lo2);
                out[4 + j] = _mm512_shuffle_i32x4::<0xdd>(lo, lo2);
                out[8 + j] = _mm512_shuffle_i32x4::<0x88>(hi, hi2);
                out[12 + j] = _mm512_shuffle_i32x4::<0xdd>(hi, hi2);
            }
            *block = transmute::<[__m512i; 16], [[u32; 16]; 16]>(out);
        }
    }

    /// Inlined into functions with AVX2, so that the block stays in registers.
    #[inline(always)]
    unsafe fn transpose8(block: &mut [[u32; 8]; 8]) {
        // SAFETY: the callers have the instructions; arrays and vectors have the same size and plain bits.
        unsafe {
            let x: [__m256i; 8] = transmute(*block);
            let mut y = x;
            for i in 0..4 {
                y[2 * i] = _mm256_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
                y[2 * i + 1] = _mm256_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
            }
            let mut z = y;
            for i in 0..2 {
                let q = 4 * i;
                z[q] = _mm256_unpacklo_epi64(y[q], y[q + 2]);
                z[q + 1] = _mm256_unpackhi_epi64(y[q], y[q + 2]);
                z[q + 2] = _mm256_unpacklo_epi64(y[q + 1], y[q + 3]);
                z[q + 3] = _mm256_unpackhi_epi64(y[q + 1], y[q + 3]);
            }
            let mut out = z;
            for j in 0..4 {
                out[j] = _mm256_permute2x128_si256::<0x20>(z[j], z[4 + j]);
                out[4 + j] = _mm256_permute2x128_si256::<0x31>(z[j], z[4 + j]);
            }
            *block = transmute::<[__m256i; 8], [[u32; 8]; 8]>(out);
        }
    }
}
