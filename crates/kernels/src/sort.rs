//! The order of elements along a dim: equal ones in the order of their indices, NaN as the largest.

use bytemuck::Pod;

use super::Cpu;
use super::pieces::{TASK_ELEMS, cut, for_pieces};
use super::reduce::Dims;
use crate::dtype::Float;

/// A number with the order of `x`: equal numbers for equal elements, the largest for NaN.
pub fn float_key<T: Float>(x: T) -> u32 {
    // Adding 0 makes -0 the 0 that it is equal to.
    let bits = (x.to_f32() + 0.0).to_bits();
    match bits >> 31 {
        _ if x.to_f32().is_nan() => u32::MAX,
        0 => bits | 1 << 31,
        _ => !bits,
    }
}

/// As [`float_key`], for integers.
pub fn int_key(x: i32) -> u32 {
    x as u32 ^ 1 << 31
}

/// Which elements are wanted, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How many of the first.
    pub k: usize,
    /// From the largest to the smallest.
    pub descending: bool,
}

/// The indices of the first `k` elements of each column of `x`, by `key`. `scratch` has an element for each of `x`.
pub fn sort<T: Pod + Send + Sync>(
    cpu: &Cpu,
    dims: Dims,
    wanted: Wanted,
    key: impl Fn(T) -> u32 + Sync + Send,
    x: &[T],
    places: &mut [i32],
    scratch: &mut [u64],
) {
    let (Dims { outer, n, inner }, Wanted { k, descending }) = (dims, wanted);
    assert!(x.len() == dims.n_elems() && scratch.len() >= x.len() && k <= n, "sort: lengths");
    assert!(places.len() == outer * k * inner, "sort: indices");
    if places.is_empty() {
        return;
    }
    let group = (TASK_ELEMS / (n * inner)).max(1);
    let outputs = (cut(places, group * k * inner), cut(scratch, group * n * inner));
    for_pieces(&cpu.par, outer.div_ceil(group), outputs, |i, (places, scratch)| {
        let blocks = x[i * group * n * inner..].chunks_exact(n * inner);
        for (x, places) in blocks.zip(places.chunks_exact_mut(k * inner)) {
            for column in 0..inner {
                let column_of = x[column..].iter().step_by(inner);
                // The index below the key keeps equal elements in order.
                let order = &mut scratch[..n];
                for ((at, x), slot) in column_of.enumerate().zip(order.iter_mut()) {
                    let key = if descending { !key(*x) } else { key(*x) };
                    *slot = u64::from(key) << 32 | at as u64;
                }
                if k < n {
                    order.select_nth_unstable(k - 1);
                }
                order[..k].sort_unstable();
                for (rank, entry) in order[..k].iter().enumerate() {
                    places[rank * inner + column] = *entry as u32 as i32;
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{same_everywhere, values};

    #[test]
    fn keys_have_the_order_of_their_numbers() {
        let floats = [f32::NEG_INFINITY, -2.0, -1e-40, 0.0, 1e-40, 1.5, f32::INFINITY, f32::NAN];
        assert!(floats.map(float_key).is_sorted());
        assert_eq!((float_key(-0.0f32), float_key(-f32::NAN)), (float_key(0.0f32), u32::MAX));
        assert!([i32::MIN, -1, 0, 7, i32::MAX].map(int_key).is_sorted());
    }

    #[test]
    fn sorts_match_a_stable_sort() {
        for (outer, n, inner, k) in [
            (1, 30_001, 1, 30_001),
            (3, 7, 5, 7),
            (4000, 9, 1, 4),
            (2, 300, 33, 299),
            (3, 1, 2, 0),
            (0, 3, 1, 2),
        ] {
            let dims = Dims { outer, n, inner };
            // Few different values, so that many are equal.
            let x: Vec<f32> =
                values::<f32>(1, dims.n_elems()).into_iter().map(|x| (x * 8.0).round() + 0.0).collect();
            for descending in [false, true] {
                let places = same_everywhere(|cpu| {
                    let (mut places, mut scratch) = (vec![0; outer * k * inner], vec![9; x.len()]);
                    sort(
                        cpu,
                        dims,
                        Wanted { k, descending },
                        float_key::<f32>,
                        &x,
                        &mut places,
                        &mut scratch,
                    );
                    places
                });
                for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                    let at = |j: usize| x[(o * n + j) * inner + i];
                    let mut order: Vec<usize> = (0..n).collect();
                    order.sort_by(
                        |&a, &b| if descending { at(b).total_cmp(&at(a)) } else { at(a).total_cmp(&at(b)) },
                    );
                    for (rank, &want) in order[..k].iter().enumerate() {
                        assert_eq!(places[(o * k + rank) * inner + i] as usize, want);
                    }
                }
            }
        }
    }
}
