//! Codes of 4 bits to the elements that a table has for them, by shuffles where the CPU has them.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::dtype::Float;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Path;

/// Elements that a vector form makes at a time.
const GROUP: usize = 32;

/// The table's element for each code; two codes in a byte, the first in the upper half. Of an odd number of elements, the
/// last byte is used by half.
#[inline(always)]
pub(super) fn expand<T: Float>(isa: Isa, table: &[T; 16], codes: &[u8], out: &mut [T]) {
    let whole = out.len() / GROUP * GROUP;
    let (groups, rest) = out.split_at_mut(whole);
    #[cfg(target_arch = "x86_64")]
    if isa.path() >= Path::Avx2 {
        for (codes, out) in codes.chunks_exact(GROUP / 2).zip(groups.chunks_exact_mut(GROUP)) {
            // SAFETY: an `Isa` with this path exists only if the CPU was found to have its features; there are 16 bytes of
            // codes and 32 elements of `out`.
            unsafe {
                match size_of::<T>() {
                    2 => avx2_halves(table.as_ptr().cast(), codes.as_ptr(), out.as_mut_ptr().cast()),
                    _ => avx2_words(table.as_ptr().cast(), codes.as_ptr(), out.as_mut_ptr().cast()),
                }
            }
        }
        return each(table, &codes[whole / 2..], rest);
    }
    each(table, codes, groups);
    each(table, &codes[whole / 2..], rest);
}

#[inline(always)]
fn each<T: Float>(table: &[T; 16], codes: &[u8], out: &mut [T]) {
    for (pair, code) in out.chunks_mut(2).zip(codes) {
        pair[0] = table[usize::from(code >> 4)];
        if let [_, second] = pair {
            *second = table[usize::from(code & 15)];
        }
    }
}

/// The 32 codes of 16 bytes, one in a byte.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn apart(codes: __m128i) -> [__m128i; 2] {
    let low = _mm_set1_epi8(15);
    let first = _mm_and_si128(_mm_srli_epi16::<4>(codes), low);
    let second = _mm_and_si128(codes, low);
    [_mm_unpacklo_epi8(first, second), _mm_unpackhi_epi8(first, second)]
}

/// Elements of 16 bits, by a shuffle for each of their two bytes.
///
/// # Safety
/// `table` has 16 elements, `codes` 16 bytes, and `out` is valid for 32 elements.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn avx2_halves(table: *const __m128i, codes: *const u8, out: *mut __m128i) {
    // SAFETY: the caller's contract; none of the accesses needs an alignment.
    unsafe {
        let (a, b) = (_mm_loadu_si128(table), _mm_loadu_si128(table.add(1)));
        let byte = _mm_set1_epi16(255);
        let low = _mm_packus_epi16(_mm_and_si128(a, byte), _mm_and_si128(b, byte));
        let high = _mm_packus_epi16(_mm_srli_epi16::<8>(a), _mm_srli_epi16::<8>(b));
        for (half, index) in apart(_mm_loadu_si128(codes.cast())).into_iter().enumerate() {
            let (low, high) = (_mm_shuffle_epi8(low, index), _mm_shuffle_epi8(high, index));
            _mm_storeu_si128(out.add(2 * half), _mm_unpacklo_epi8(low, high));
            _mm_storeu_si128(out.add(2 * half + 1), _mm_unpackhi_epi8(low, high));
        }
    }
}

/// Elements of 32 bits, from two halves of the table.
///
/// # Safety
/// As [`avx2_halves`].
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn avx2_words(table: *const f32, codes: *const u8, out: *mut f32) {
    // SAFETY: the caller's contract; none of the accesses needs an alignment.
    unsafe {
        let (a, b) = (_mm256_loadu_ps(table), _mm256_loadu_ps(table.add(8)));
        for (half, index) in apart(_mm_loadu_si128(codes.cast())).into_iter().enumerate() {
            for (quarter, index) in [index, _mm_srli_si128::<8>(index)].into_iter().enumerate() {
                let index = _mm256_cvtepu8_epi32(index);
                // Bit 3, which says the half of the table, becomes the sign.
                let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
                let (a, b) = (_mm256_permutevar8x32_ps(a, index), _mm256_permutevar8x32_ps(b, index));
                _mm256_storeu_ps(out.add(16 * half + 8 * quarter), _mm256_blendv_ps(a, b, upper));
            }
        }
    }
}
