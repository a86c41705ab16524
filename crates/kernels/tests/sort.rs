//! Orders of elements against a stable sort.

use oarlock_kernels::reduce::Dims;
use oarlock_kernels::sort::{Wanted, float_key, int_key, sort};

use crate::everywhere::{same_everywhere, values};

#[test]
fn keys_have_the_order_of_their_numbers() {
    let floats = [f32::NEG_INFINITY, -2.0, -1e-40, 0.0, 1e-40, 1.5, f32::INFINITY, f32::NAN];
    assert!(floats.map(float_key).is_sorted());
    assert_eq!((float_key(-0.0f32), float_key(-f32::NAN)), (float_key(0.0f32), u32::MAX));
    assert!([i32::MIN, -1, 0, 7, i32::MAX].map(int_key).is_sorted());
}

#[test]
fn sorts_match_a_stable_sort() {
    for (outer, n, inner, k) in
        [(1, 30_001, 1, 30_001), (3, 7, 5, 7), (4000, 9, 1, 4), (2, 300, 33, 299), (3, 1, 2, 0), (0, 3, 1, 2)]
    {
        let dims = Dims { outer, n, inner };
        // Few different values, so that many are equal.
        let x: Vec<f32> =
            values::<f32>(1, dims.n_elems()).into_iter().map(|x| (x * 8.0).round() + 0.0).collect();
        for descending in [false, true] {
            let places = same_everywhere(|cpu| {
                let (mut places, mut scratch) = (vec![0; outer * k * inner], vec![9; x.len()]);
                sort(cpu, dims, Wanted { k, descending }, &x, &mut places, &mut scratch);
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
