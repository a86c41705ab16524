//! The order of elements along a dim: equal ones in the order of their indices, NaN as the largest.

use crate::Cpu;
use crate::dtype::Float;
use crate::instances::instances;
use crate::pieces::{TASK_ELEMS, cut, for_pieces};
use crate::reduce::Dims;

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

instances! {
    /// The indices of the first `k` elements of each column of `x`. `scratch` has an element for each of `x`.
    pub fn sort[T: Float](
        cpu: &Cpu, dims: Dims, wanted: Wanted, x: &[T], places: &mut [i32], scratch: &mut [u64],
    ) {
        sort_by(cpu, dims, wanted, float_key::<T>, x, places, scratch);
    }
}

/// The same for integers.
pub fn sort_ints(cpu: &Cpu, dims: Dims, wanted: Wanted, x: &[i32], places: &mut [i32], scratch: &mut [u64]) {
    sort_by(cpu, dims, wanted, int_key, x, places, scratch);
}

fn sort_by<T: Copy + Sync>(
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
