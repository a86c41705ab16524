//! The comparison: a number that is not finite is near nothing but the same infinity.

use crate::number::{Number, f64s};

/// Whether a result may stand for what is wanted. NaN never may, and nothing but an infinity may for one.
pub fn is_within(got: f64, want: f64, allowed: f64) -> bool {
    got == want || (want.is_finite() && (got - want).abs() <= allowed)
}

/// The error that sums in f32 may have, and so many roundings to `T` if those are more.
pub fn tolerance<T: Number>(slack: f64, roundings: f64) -> f64 {
    let rounded = roundings * T::ROUNDING;
    if rounded < slack { slack } else { slack + rounded }
}

/// Asserts that the error of each element is at most what is allowed at its place.
#[track_caller]
pub fn assert_within<T: Number>(what: &str, got: &[T], want: &[f64], allowed: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (got, want)) in f64s(got).iter().zip(want).enumerate() {
        let allowed = allowed(i);
        assert!(
            is_within(*got, *want, allowed),
            "{what}, element {i}: got {got}, want {want}, allowed error {allowed:e}"
        );
    }
}

/// Asserts `|got - want| <= tolerance * (1 + |want|)` for each element.
#[track_caller]
pub fn assert_close<T: Number>(what: &str, got: &[T], want: &[f64], tolerance: f64) {
    assert_within(what, got, want, |i| tolerance * (1.0 + want[i].abs()));
}

/// Asserts that no error is more than a part of the largest finite number that is wanted, or of `least` if that is more.
#[track_caller]
pub fn assert_near_largest<T: Number>(what: &str, got: &[T], want: &[f64], tolerance: f64, least: f64) {
    let magnitudes = want.iter().map(|want| want.abs()).filter(|want| want.is_finite());
    let largest = magnitudes.fold(least, |most, x| if x > most { x } else { most });
    assert_within(what, got, want, |_| tolerance * largest);
}

/// Asserts that the whole is near: the root of the sum of squared errors relative to what is wanted, and each element within
/// twelve times that.
#[track_caller]
pub fn assert_near_as_a_whole<T: Number>(what: &str, got: &[T], want: &[f64], tolerance: f64) {
    assert_within(what, got, want, |i| 12.0 * tolerance * (1.0 + want[i].abs()));
    let (mut error, mut size) = (0.0, 0.0);
    for (got, want) in f64s(got).iter().zip(want).filter(|(_, want)| want.is_finite()) {
        error += (got - want).powi(2);
        size += want * want;
    }
    // What is nothing but for roundings has no size.
    let relative = (error / f64::max(size, 1e-6 * want.len() as f64)).sqrt();
    assert!(relative <= tolerance, "{what}: a relative error of {relative:.2e}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_not_a_number_passes() {
        let all = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0];
        for (got, want) in all.iter().flat_map(|got| all.map(|want| (*got, want))) {
            let same = got == want && !got.is_nan();
            assert_eq!(is_within(got, want, 1e300), same, "{got}, {want}");
            let passes = |check: fn(&str, &[f32], &[f64])| {
                std::panic::catch_unwind(|| check("x", &[0.5, got as f32], &[0.5, want])).is_ok()
            };
            assert_eq!(passes(|what, got, want| assert_close(what, got, want, 1.0)), same);
            assert_eq!(passes(|what, got, want| assert_near_largest(what, got, want, 1.0, 1.0)), same);
            assert_eq!(passes(|what, got, want| assert_near_as_a_whole(what, got, want, 1.0)), same);
        }
        assert!(std::panic::catch_unwind(|| assert_close("x", &[1f32], &[1.0, 1.0], 1.0)).is_err());
    }
}
