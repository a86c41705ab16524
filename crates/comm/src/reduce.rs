//! The sum over ranks: one pass over all sources in blocks that stay in cache, each element in a fixed pairwise tree.
//!
//! The tree of `n` ranks joins the largest power of two below `n` with the rest: `((0+1)+(2+3))+4`. A contiguous group of
//! a power of two of ranks adds as it would inside the whole, so sums of group sums have the same bits.

use std::ops::Range;

use oarlock_tensor::{DType, Float, bf16, f16};

/// Elements of a block: 16 KiB of f32, so that a block of sums stays in the first-level cache.
const BLOCK: usize = 4096;

/// Where the tree over `n > 1` leaves parts: the largest power of two below `n`.
fn parting(n: usize) -> usize {
    n.next_power_of_two() / 2
}

/// Folds the values of `ranks` in the fixed tree.
pub(crate) fn tree_fold(
    ranks: Range<usize>,
    of_rank: &impl Fn(usize) -> f64,
    join: &impl Fn(f64, f64) -> f64,
) -> f64 {
    if ranks.len() < 2 {
        return of_rank(ranks.start);
    }
    let middle = ranks.start + parting(ranks.len());
    join(tree_fold(ranks.start..middle, of_rank, join), tree_fold(middle..ranks.end, of_rank, join))
}

/// Writes the sum over `sources` of the elements of `range` to each of `targets`, which may be sources.
///
/// # Safety
/// All pointers are aligned and valid for elements up to `range.end` of `dtype`; while this runs nobody else writes the
/// range in a source or touches it in a target. `dtype` is a float.
pub(crate) unsafe fn sum_range(
    dtype: DType,
    sources: &[*const u8],
    targets: &[*mut u8],
    range: Range<usize>,
) {
    // SAFETY: the caller's promise, with the type that belongs to the dtype.
    unsafe {
        match dtype {
            DType::BF16 => sum_elements::<bf16>(sources, targets, range),
            DType::F16 => sum_elements::<f16>(sources, targets, range),
            _ => sum_elements::<f32>(sources, targets, range),
        }
    }
}

/// # Safety
/// As [`sum_range`], for elements of type `T`.
unsafe fn sum_elements<T: Float>(sources: &[*const u8], targets: &[*mut u8], range: Range<usize>) {
    let mut sums = [0f32; BLOCK];
    let mut blocks: Vec<&[T]> = Vec::with_capacity(sources.len());
    let mut start = range.start;
    while start < range.end {
        let length = BLOCK.min(range.end - start);
        blocks.clear();
        // SAFETY: inside the buffers and not written while borrowed (the targets are written after the last use).
        blocks.extend(
            sources.iter().map(|s| unsafe { std::slice::from_raw_parts(s.cast::<T>().add(start), length) }),
        );
        sum_block(&blocks, &mut sums[..length]);
        blocks.clear();
        for target in targets {
            // SAFETY: inside the buffer, and nobody else touches this range of a target.
            let target = unsafe { std::slice::from_raw_parts_mut(target.cast::<T>().add(start), length) };
            for (to, &sum) in target.iter_mut().zip(&sums[..length]) {
                *to = T::from_f32(sum);
            }
        }
        start += length;
    }
}

/// The sums of a block in the fixed tree; up to eight sources in one pass.
fn sum_block<T: Float>(sources: &[&[T]], out: &mut [f32]) {
    let n = out.len();
    macro_rules! pass {
        ($([$i:ident])+, $sum:expr) => {{
            let mut each = sources.iter();
            $(let $i = &each.next().copied().unwrap_or_default()[..n];)+
            for i in 0..n {
                $(let $i = $i[i].to_f32();)+
                out[i] = $sum;
            }
        }};
    }
    match sources.len() {
        0 => out.fill(0.0),
        1 => pass!([a], a),
        2 => pass!([a][b], a + b),
        3 => pass!([a][b][c], (a + b) + c),
        4 => pass!([a][b][c][d], (a + b) + (c + d)),
        5 => pass!([a][b][c][d][e], ((a + b) + (c + d)) + e),
        6 => pass!([a][b][c][d][e][f], ((a + b) + (c + d)) + (e + f)),
        7 => pass!([a][b][c][d][e][f][g], ((a + b) + (c + d)) + ((e + f) + g)),
        8 => pass!([a][b][c][d][e][f][g][h], ((a + b) + (c + d)) + ((e + f) + (g + h))),
        more => {
            let (left, right) = sources.split_at(parting(more));
            let mut other = [0f32; BLOCK];
            sum_block(left, out);
            sum_block(right, &mut other[..n]);
            out.iter_mut().zip(&other).for_each(|(a, b)| *a += b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(rank: usize, n: usize) -> Vec<f32> {
        (0..n)
            .map(|i| ((i * 7919 + rank * 104_729) % 2003) as f32 * 1.37e-3 - 1.1 / (rank + 1) as f32)
            .collect()
    }

    #[test]
    fn every_number_of_sources_adds_in_the_tree_and_near_the_exact_sum() {
        let n = BLOCK + 137;
        for ranks in 1..20 {
            let mut buffers: Vec<Vec<f32>> = (0..ranks).map(|r| values(r, n)).collect();
            let before = buffers.clone();
            let sources: Vec<*const u8> = buffers.iter().map(|b| b.as_ptr().cast()).collect();
            let target = buffers[ranks - 1].as_mut_ptr().cast();
            // SAFETY: buffers of n elements each, used by this thread alone.
            unsafe { sum_range(DType::F32, &sources, &[target], 3..n) };
            for i in 3..n {
                let tree =
                    tree_fold(0..ranks, &|r| before[r][i] as f64, &|a, b| (a as f32 + b as f32) as f64);
                assert_eq!(buffers[ranks - 1][i], tree as f32, "{ranks} ranks, element {i}");
                let exact: f64 = before.iter().map(|b| b[i] as f64).sum();
                assert!((tree - exact).abs() < 1e-5, "{ranks} ranks, element {i}");
            }
            assert_eq!(buffers[ranks - 1][..3], before[ranks - 1][..3]);
        }
    }

    #[test]
    fn sixteen_bits_are_added_in_f32_and_rounded_once() {
        let buffers: Vec<Vec<bf16>> =
            (0..5).map(|r| values(r, 100).into_iter().map(<bf16 as Float>::from_f32).collect()).collect();
        let mut out = vec![bf16::ZERO; 100];
        let sources: Vec<*const u8> = buffers.iter().map(|b| b.as_ptr().cast()).collect();
        // SAFETY: buffers of 100 elements each, used by this thread alone.
        unsafe { sum_range(DType::BF16, &sources, &[out.as_mut_ptr().cast()], 0..100) };
        for i in 0..100 {
            let sum =
                tree_fold(0..5, &|r| buffers[r][i].to_f32() as f64, &|a, b| (a as f32 + b as f32) as f64);
            assert_eq!(out[i], <bf16 as Float>::from_f32(sum as f32));
        }
    }

    #[test]
    fn a_group_of_a_power_of_two_adds_as_inside_the_whole() {
        let x: Vec<f64> = (0..16).map(|r| values(r, 1)[0] as f64 * 1e3).collect();
        let add = |a: f64, b: f64| (a as f32 + b as f32) as f64;
        for size in [1, 2, 4, 8] {
            let of_group = |g: usize| tree_fold(g * size..(g + 1) * size, &|r| x[r], &add);
            assert_eq!(tree_fold(0..16 / size, &of_group, &add), tree_fold(0..16, &|r| x[r], &add));
        }
    }
}
