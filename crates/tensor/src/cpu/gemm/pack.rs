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
    /// Elements that may be read from `data`.
    pub(crate) len: usize,
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

/// Steps that are copied into every panel before the next: few enough that the rows in flight keep their pages in the
/// first-level TLB, enough that each panel gets some whole lines.
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
    let steps = k.len().div_ceil(per_step);
    let n_panels = outer.len().div_ceil(panels.used);
    // The block of lanes `lane..lane + L` of panel `p`, from step `s`.
    let block = |p: usize, lane: usize, s: usize| {
        let (first, first_k) = (outer.start + p * panels.used + lane, k.start + s * per_step);
        let offset =
            if src.k_contiguous { first * src.stride + first_k } else { first_k * src.stride + first };
        Block {
            from: src.data.wrapping_add(offset),
            left: src.len.saturating_sub(offset),
            stride: src.stride,
            lanes: src.extent.saturating_sub(first).min(L),
            k: k.end - first_k,
            to: dst.wrapping_add(p * panels.stride + s * panels.width + lane),
            width: panels.width,
        }
    };
    // SAFETY: the caller promises the ranges and the room for all panels.
    unsafe {
        if src.k_contiguous {
            for p in 0..n_panels {
                for lane in (0..panels.width).step_by(L) {
                    for s in (0..steps).step_by(L) {
                        let block = block(p, lane, s);
                        if block.lanes > 0 && block.k >= L * per_step {
                            block.turn::<PAIRS, L>(&transpose);
                        } else if block.lanes > 0 {
                            block.edge::<PAIRS, L>(L, true, |b| b.turn::<PAIRS, L>(&transpose));
                        }
                    }
                }
            }
        } else {
            for s in (0..steps).step_by(STEPS_AT_ONCE) {
                for p in 0..n_panels {
                    for lane in (0..panels.width).step_by(L) {
                        let block = block(p, lane, s);
                        let n_steps = STEPS_AT_ONCE.min(steps - s);
                        // Lanes beyond the matrix may read on into the next row.
                        let end = (n_steps * per_step - 1) * src.stride + L;
                        if block.lanes > 0 && block.k >= n_steps * per_step && end <= block.left {
                            block.copy::<PAIRS, L>(n_steps);
                        } else if block.lanes > 0 {
                            block.edge::<PAIRS, L>(n_steps, false, |b| b.copy::<PAIRS, L>(n_steps));
                        }
                    }
                }
            }
        }
    }
}

/// Where some steps of some lanes of one panel come from and go to.
struct Block<T> {
    from: *const T,
    /// Elements that may be read from there.
    left: usize,
    stride: usize,
    /// Outer indices that exist.
    lanes: usize,
    /// Elements of K that are left.
    k: usize,
    to: *mut u32,
    width: usize,
}

impl<T: Float> Block<T> {
    /// `L` steps of `L` lanes of a source that runs along K; lanes that do not exist repeat the last.
    ///
    /// # Safety
    /// The steps and at least one lane must exist.
    #[inline(always)]
    unsafe fn turn<const PAIRS: bool, const L: usize>(&self, transpose: impl Fn(&mut [[u32; L]; L])) {
        let mut words = [[0u32; L]; L];
        // SAFETY: the caller's contract.
        unsafe {
            for (r, row) in words.iter_mut().enumerate() {
                *row = along_k::<T, PAIRS, L>(self.from.add(r.min(self.lanes - 1) * self.stride));
                // The rows of the next lanes: short rows end before the hardware has learned to follow them.
                prefetch(self.from.wrapping_add((r + L) * self.stride));
            }
            transpose(&mut words);
            for (i, row) in words.iter().enumerate() {
                self.to.add(i * self.width).cast::<[u32; L]>().write_unaligned(*row);
            }
        }
    }

    /// `steps` steps of `L` lanes of a source that runs across K.
    ///
    /// # Safety
    /// All of it must be readable.
    #[inline(always)]
    unsafe fn copy<const PAIRS: bool, const L: usize>(&self, steps: usize) {
        let per_step = if PAIRS { 2 } else { 1 };
        let ahead = STEPS_AT_ONCE * per_step * self.stride;
        for s in 0..steps {
            let from = self.from.wrapping_add(s * per_step * self.stride);
            prefetch(from.wrapping_add(ahead));
            if PAIRS {
                prefetch(from.wrapping_add(ahead + self.stride));
            }
            // SAFETY: the caller's contract.
            unsafe {
                let words = across::<T, PAIRS, L>(from, from.wrapping_add(self.stride));
                self.to.add(s * self.width).cast::<[u32; L]>().write_unaligned(words);
            }
        }
    }

    /// Does a block of at most `steps` steps (up to 16) that is not whole: `whole` gets it completed with zeros.
    ///
    /// # Safety
    /// What `lanes` and `k` name must exist.
    #[inline(never)]
    unsafe fn edge<const PAIRS: bool, const L: usize>(
        &self,
        steps: usize,
        along_k: bool,
        whole: impl Fn(&Block<T>),
    ) {
        let per_step = if PAIRS { 2 } else { 1 };
        let n_k = self.k.min(steps * per_step);
        let (rows, cols) = if along_k { (self.lanes, n_k) } else { (n_k, self.lanes) };
        let (mut from, mut to) = ([[[T::zeroed(); L]; 2]; 32], [[0u32; L]; 16]);
        for (r, buffer) in from.iter_mut().enumerate().take(rows) {
            // SAFETY: a stored row holds these elements; the buffer's rows hold twice `L`.
            unsafe {
                let row = self.from.add(r * self.stride);
                row.copy_to_nonoverlapping(buffer.as_flattened_mut().as_mut_ptr(), cols);
            }
        }
        let left = 64 * L;
        let (from, to_start) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
        whole(&Block { from, left, stride: 2 * L, lanes: L, k: 2 * L, to: to_start, width: L });
        for (s, words) in to.iter().enumerate().take(n_k.div_ceil(per_step)) {
            // SAFETY: the panel has these steps.
            unsafe { self.to.add(s * self.width).cast::<[u32; L]>().write_unaligned(*words) }
        }
    }
}

/// Asks for the cache line at `p`, which need not be valid.
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
