//! The sum over ranks: one pass over all sources, each element in a fixed pairwise tree.
//!
//! The tree of `n` ranks joins the largest power of two below `n` with the rest: `((0+1)+(2+3))+4`. A contiguous group of
//! a power of two of ranks adds as it would inside the whole, so sums of group sums have the same bits.

use std::ops::Range;

use oarlock_tensor::{DType, Float, bf16, f16};

/// Elements that are added at a time: they stay in registers from the first source to the last target, so that no pass
/// reads what another wrote.
const TILE: usize = 16;

/// Where the tree over `n > 1` leaves parts: the largest power of two below `n`.
fn parting(n: usize) -> usize {
    n.next_power_of_two() / 2
}

/// Folds the values of `ranks`, at least one, in the fixed tree.
pub fn tree_fold<T>(ranks: Range<usize>, of_rank: &impl Fn(usize) -> T, join: &impl Fn(T, T) -> T) -> T {
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
    let tiles = range.len() / TILE;
    let rest = range.start + tiles * TILE;
    // SAFETY: every tile lies inside the range.
    unsafe {
        (0..tiles).for_each(|tile| sum_tile::<T, TILE>(sources, targets, range.start + tile * TILE));
        (rest..range.end).for_each(|at| sum_tile::<T, 1>(sources, targets, at));
    }
}

/// # Safety
/// As [`sum_range`], for the `N` elements of type `T` from `at` on.
#[inline(always)]
unsafe fn sum_tile<T: Float, const N: usize>(sources: &[*const u8], targets: &[*mut u8], at: usize) {
    // SAFETY: the caller's promise.
    let sums = unsafe { tree_tile::<T, N>(sources, at) }.map(T::from_f32);
    for target in targets {
        // SAFETY: the caller's promise; aligned for an element, which is what an array of them needs.
        unsafe { target.cast::<T>().add(at).cast::<[T; N]>().write(sums) };
    }
}

/// The sums of one tile in the fixed tree; up to eight sources in one expression.
///
/// # Safety
/// As [`sum_range`], for the `N` elements of type `T` from `at` on.
#[inline(always)]
unsafe fn tree_tile<T: Float, const N: usize>(sources: &[*const u8], at: usize) -> [f32; N] {
    // SAFETY: the caller's promise.
    let of = |source: *const u8| unsafe { source.cast::<T>().add(at).cast::<[T; N]>().read() }.map(T::to_f32);
    let add = |a: [f32; N], b: [f32; N]| -> [f32; N] { std::array::from_fn(|i| a[i] + b[i]) };
    match *sources {
        [] => [0.0; N],
        [a] => of(a),
        [a, b] => add(of(a), of(b)),
        [a, b, c] => add(add(of(a), of(b)), of(c)),
        [a, b, c, d] => add(add(of(a), of(b)), add(of(c), of(d))),
        [a, b, c, d, e] => add(add(add(of(a), of(b)), add(of(c), of(d))), of(e)),
        [a, b, c, d, e, f] => add(add(add(of(a), of(b)), add(of(c), of(d))), add(of(e), of(f))),
        [a, b, c, d, e, f, g] => {
            add(add(add(of(a), of(b)), add(of(c), of(d))), add(add(of(e), of(f)), of(g)))
        }
        [a, b, c, d, e, f, g, h] => {
            add(add(add(of(a), of(b)), add(of(c), of(d))), add(add(of(e), of(f)), add(of(g), of(h))))
        }
        // SAFETY: the caller's promise.
        _ => unsafe { tree_of_many::<T, N>(sources, at) },
    }
}

/// The tree over more than eight sources.
///
/// # Safety
/// As [`tree_tile`].
unsafe fn tree_of_many<T: Float, const N: usize>(sources: &[*const u8], at: usize) -> [f32; N] {
    let (left, right) = sources.split_at(parting(sources.len()));
    // SAFETY: the caller's promise.
    let (mut sums, others) = unsafe { (tree_tile::<T, N>(left, at), tree_tile::<T, N>(right, at)) };
    sums.iter_mut().zip(others).for_each(|(a, b)| *a += b);
    sums
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
        let n = 20 * TILE + 7;
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
