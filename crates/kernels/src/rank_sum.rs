//! The sum over ranks: one pass over all sources, each element in a fixed pairwise tree.
//!
//! The tree of `n` ranks joins the largest power of two below `n` with the rest: `((0+1)+(2+3))+4`. A contiguous group of
//! a power of two of ranks adds as it would inside the whole, so sums of group sums are bitwise identical.

use std::ops::Range;

use crate::dtype::{DType, Float, bf16, f16};

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
/// As [`sum_range_as`] with one dtype.
pub unsafe fn sum_range(dtype: DType, sources: &[*const u8], targets: &[*mut u8], range: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe { sum_range_as([dtype, dtype], sources, targets, range) };
}

/// Writes the sum over `sources` of the elements of `range` to each of `targets`, rounded once to the second of `dtypes`. Sums of
/// groups that are kept in `f32` add up bitwise to the sum of all (see above).
///
/// # Safety
/// All pointers are aligned and valid for elements up to `range.end`, of the first of `dtypes` in sources and of the second in
/// targets; while this runs nobody else writes the range in a source or touches it in a target. A target may be a source if the
/// dtypes are the same. Both are floats, the same or one of them `f32`.
pub unsafe fn sum_range_as(
    dtypes: [DType; 2],
    sources: &[*const u8],
    targets: &[*mut u8],
    range: Range<usize>,
) {
    // SAFETY: the caller's promise, with the types that belong to the dtypes.
    unsafe {
        match dtypes {
            [DType::BF16, DType::BF16] => sum_elements::<bf16, bf16>(sources, targets, range),
            [DType::BF16, _] => sum_elements::<bf16, f32>(sources, targets, range),
            [DType::F16, DType::F16] => sum_elements::<f16, f16>(sources, targets, range),
            [DType::F16, _] => sum_elements::<f16, f32>(sources, targets, range),
            [_, DType::BF16] => sum_elements::<f32, bf16>(sources, targets, range),
            [_, DType::F16] => sum_elements::<f32, f16>(sources, targets, range),
            _ => sum_elements::<f32, f32>(sources, targets, range),
        }
    }
}

/// # Safety
/// As [`sum_range_as`], from elements of type `S` to those of type `T`.
unsafe fn sum_elements<S: Float, T: Float>(sources: &[*const u8], targets: &[*mut u8], range: Range<usize>) {
    let tiles = range.len() / TILE;
    let rest = range.start + tiles * TILE;
    // SAFETY: every tile lies inside the range.
    unsafe {
        (0..tiles).for_each(|tile| sum_tile::<S, T, TILE>(sources, targets, range.start + tile * TILE));
        (rest..range.end).for_each(|at| sum_tile::<S, T, 1>(sources, targets, at));
    }
}

/// # Safety
/// As [`sum_range_as`], for the `N` elements from `at` on.
#[inline(always)]
unsafe fn sum_tile<S: Float, T: Float, const N: usize>(
    sources: &[*const u8],
    targets: &[*mut u8],
    at: usize,
) {
    // SAFETY: the caller's promise.
    let sums = unsafe { tree_tile::<S, N>(sources, at) }.map(T::from_f32);
    for target in targets {
        // SAFETY: the caller's promise; aligned for an element, which is what an array of them needs.
        unsafe { target.cast::<T>().add(at).cast::<[T; N]>().write(sums) };
    }
}

/// The sums of one tile in the fixed tree; up to eight sources in one expression.
///
/// # Safety
/// As [`sum_range_as`], for the `N` elements of type `T` from `at` on.
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
