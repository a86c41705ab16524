//! Packing: copies a block of a matrix into panels of words in the order in which the micro-kernels read them.

use std::ops::Range;

use crate::dtype::Float;
use crate::isa::{Isa, Path};

use super::convert::widen;

/// A matrix as packing sees it: an outer dimension (rows of A, columns of B) and the reduction dimension K.
#[derive(Clone, Copy)]
pub(crate) struct Source<T> {
    /// The first element.
    pub(crate) data: *const T,
    /// Elements that may be read from `data`.
    pub(crate) len: usize,
    /// Elements between stored rows.
    pub(crate) stride: usize,
    /// The size of the outer dimension.
    pub(crate) extent: usize,
    /// Whether a stored row runs along K (else along the outer dimension).
    pub(crate) k_contiguous: bool,
}

impl<T> Source<T> {
    /// Asks the second-level cache for part `part` of `parts` of a block that is needed soon.
    pub(crate) fn prefetch(&self, outer: &Range<usize>, k: &Range<usize>, part: usize, parts: usize) {
        let (rows, cols) = if self.k_contiguous { (outer, k) } else { (k, outer) };
        for row in rows.start + rows.len() * part / parts..rows.start + rows.len() * (part + 1) / parts {
            for col in cols.clone().step_by(LINE / size_of::<T>()) {
                prefetch_to_l2(self.data.wrapping_add(row * self.stride + col));
            }
        }
    }
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

/// Packs `outer` x `k` of `src` into consecutive panels at `dst`. Lanes beyond the matrix
/// get any value; the second half of the last pair of an odd `k` becomes zero.
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

#[inline(always)]
unsafe fn body<T: Float, const PAIRS: bool, const L: usize>(
    src: &Source<T>,
    outer: Range<usize>,
    k: Range<usize>,
    panels: Panels,
    dst: *mut u32,
    transpose: impl Fn(&mut [[u32; L]; L]),
) {
    // SAFETY: the caller's contract.
    unsafe {
        if src.k_contiguous {
            turn::<T, PAIRS, L>(src, outer, k, panels, dst, transpose);
        } else {
            copy::<T, PAIRS, L>(src, outer, k, panels, dst);
        }
    }
}

/// Packs a source whose rows run along K: blocks of `L` lanes by `L` steps are transposed in registers.
#[inline(always)]
unsafe fn turn<T: Float, const PAIRS: bool, const L: usize>(
    src: &Source<T>,
    outer: Range<usize>,
    k: Range<usize>,
    panels: Panels,
    dst: *mut u32,
    transpose: impl Fn(&mut [[u32; L]; L]),
) {
    let per_step = if PAIRS { 2 } else { 1 };
    let steps = k.len().div_ceil(per_step);
    for p in 0..outer.len().div_ceil(panels.used) {
        for lane in (0..panels.width).step_by(L) {
            let first = outer.start + p * panels.used + lane;
            // Lanes beyond the matrix repeat its last.
            let Some(last_lane) = src.extent.checked_sub(first + 1) else { continue };
            for s in (0..steps).step_by(L) {
                let left = k.len() - s * per_step;
                let mut words = [[0u32; L]; L];
                // SAFETY: the lanes have `left` elements from here, and the panel has `steps` groups of words.
                unsafe {
                    let from = src.data.add(first * src.stride + k.start + s * per_step);
                    for (r, row) in words.iter_mut().enumerate() {
                        let from = from.add(r.min(last_lane) * src.stride);
                        if left >= L * per_step {
                            *row = along_k::<T, PAIRS, L>(from);
                        } else {
                            let mut tail = [[T::zeroed(); L]; 2];
                            let tail = tail.as_flattened_mut().as_mut_ptr();
                            from.copy_to_nonoverlapping(tail, left);
                            *row = along_k::<T, PAIRS, L>(tail);
                        }
                        // The rows of the next lanes: short rows end before the hardware has learned to follow them.
                        prefetch(from.wrapping_add(L * src.stride));
                    }
                    transpose(&mut words);
                    let to = dst.add(p * panels.stride + s * panels.width + lane);
                    for (i, row) in words.iter().enumerate().take(steps - s) {
                        to.add(i * panels.width).cast::<[u32; L]>().write_unaligned(*row);
                    }
                }
            }
        }
    }
}

/// Rows that are asked for ahead of the one that is copied.
const ROWS_AHEAD: usize = 8;

/// Packs a source whose rows run across K: each row (or pair) is read once, from end to end.
#[inline(always)]
unsafe fn copy<T: Float, const PAIRS: bool, const L: usize>(
    src: &Source<T>,
    outer: Range<usize>,
    k: Range<usize>,
    panels: Panels,
    dst: *mut u32,
) {
    let n_panels = outer.len().div_ceil(panels.used);
    for (s, row) in k.clone().step_by(if PAIRS { 2 } else { 1 }).enumerate() {
        let start = row * src.stride + outer.start;
        let has_second = PAIRS && row + 1 < k.end;
        let second = if has_second { src.stride } else { 0 };
        let readable = src.len - start - second;
        // Panels that reach beyond the matrix may read on into the next row, but not beyond the data.
        let whole = if PAIRS && !has_second || readable < panels.width {
            0
        } else {
            n_panels.min((readable - panels.width) / panels.used + 1)
        };
        let (mut from, mut to) = (src.data.wrapping_add(start), dst.wrapping_add(s * panels.width));
        for _ in 0..whole {
            for lane in (0..panels.width).step_by(L) {
                let from = from.wrapping_add(lane);
                // SAFETY: see `whole`; the panel has this step.
                unsafe {
                    let words = across::<T, PAIRS, L>(from, from.wrapping_add(second));
                    to.wrapping_add(lane).cast::<[u32; L]>().write_unaligned(words);
                }
                prefetch(from.wrapping_add(ROWS_AHEAD * src.stride));
                if PAIRS {
                    prefetch(from.wrapping_add((ROWS_AHEAD + 1) * src.stride));
                }
            }
            (from, to) = (from.wrapping_add(panels.used), to.wrapping_add(panels.stride));
        }
        for p in whole..n_panels {
            for lane in (0..panels.width).step_by(L) {
                let lanes = (outer.len() - p * panels.used).saturating_sub(lane).min(L);
                let (mut first, mut next) = ([T::zeroed(); L], [T::zeroed(); L]);
                // SAFETY: this many lanes exist; the panel has this step.
                unsafe {
                    let from = src.data.wrapping_add(start + p * panels.used + lane);
                    from.copy_to_nonoverlapping(first.as_mut_ptr(), lanes);
                    if has_second {
                        from.wrapping_add(second).copy_to_nonoverlapping(next.as_mut_ptr(), lanes);
                    }
                    let words = across::<T, PAIRS, L>(first.as_ptr(), next.as_ptr());
                    let to = dst.add(p * panels.stride + s * panels.width + lane);
                    to.cast::<[u32; L]>().write_unaligned(words);
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

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Asks the second-level cache for the line at `p`, which need not be valid.
#[inline(always)]
pub(crate) fn prefetch_to_l2<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Asks the first-level cache for the line at `p`, which need not be valid.
#[inline(always)]
pub(super) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Each element as one word: its value in f32.
#[inline(always)]
pub(super) fn words<T: Float, const L: usize>(x: [T; L]) -> [u32; L] {
    std::array::from_fn(|i| widen(x[i]).to_bits())
}

#[inline(always)]
fn portable_transpose<const L: usize>(block: &mut [[u32; L]; L]) {
    let from = *block;
    *block = std::array::from_fn(|i| std::array::from_fn(|j| from[j][i]));
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::transpose8;

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

    /// The transpose of 8 x 8 words.
    ///
    /// # Safety
    /// Inlined into functions with AVX2, so that the block stays in registers.
    #[inline(always)]
    pub(crate) unsafe fn transpose8(block: &mut [[u32; 8]; 8]) {
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
