//! Orders along a dim of `[outer, n, inner]`.

/// The order of elements: NaN is the largest, both zeros are equal.
fn key(x: f64) -> f64 {
    if x.is_nan() { f64::INFINITY } else { x.clamp(-1e300, 1e300) + 0.0 }
}

/// Where the first `k` along the dim are, `[outer, k, inner]`; equal ones stay in their order.
pub fn places(x: &[f64], [outer, n, inner]: [usize; 3], k: usize, descending: bool) -> Vec<usize> {
    let mut places = vec![0; outer * k * inner];
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        let at = |j: usize| key(x[(o * n + j) * inner + i]);
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| if descending { at(b).total_cmp(&at(a)) } else { at(a).total_cmp(&at(b)) });
        for (rank, place) in order.into_iter().take(k).enumerate() {
            places[(o * k + rank) * inner + i] = place;
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_elements_stay_in_order_and_nan_is_the_largest() {
        let x = [0.0, f64::NAN, -0.0, f64::INFINITY, -1.0];
        assert_eq!(places(&x, [1, 5, 1], 5, false), [4, 0, 2, 3, 1]);
        assert_eq!(places(&x, [1, 5, 1], 3, true), [1, 3, 0]);
        assert_eq!(places(&[1.0, 4.0, 3.0, 2.0], [1, 2, 2], 1, true), [1, 0]);
    }
}
