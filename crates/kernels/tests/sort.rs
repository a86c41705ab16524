//! Orders of elements against a stable sort.

use oarlock_kernels::reduce::Dims;
use oarlock_kernels::sort::{Wanted, float_key, int_key, sort};
use oarlock_reference::sort::places as places_of;

use crate::everywhere::{f64s, same_everywhere, values};

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
            let want = places_of(&f64s(&x), [outer, n, inner], k, descending);
            assert_eq!(places, want.into_iter().map(|place| place as i32).collect::<Vec<_>>());
        }
    }
}
