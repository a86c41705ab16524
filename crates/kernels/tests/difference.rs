//! Distances between lists of numbers: nothing that is not a finite number is passed over, wherever it stands.

use oarlock_kernels::difference::{
    Incomparable, largest_difference, largest_difference_by, largest_magnitude,
};

#[test]
fn the_largest_distance_is_found() {
    assert_eq!(largest_difference(&[1.0, 2.0, -3.0], &[1.5f32, 2.0, -1.0]), Ok(2.0));
    assert_eq!(largest_difference_by(&[2.0, 90.0], &[1.0, 100.0], |a, b| (a / b - 1.0).abs()), Ok(1.0));
    assert_eq!(largest_difference::<f32, f32>(&[], &[]), Ok(0.0));
    assert_eq!(largest_magnitude([1.0f32, -4.0, 3.0]), Ok(4.0));
}

#[test]
fn what_is_no_finite_number_is_an_error_at_every_place() {
    let right = [0.25f32, -1.0, 4.0];
    for index in 0..right.len() {
        for value in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut left = right;
            left[index] = value;
            for found in [largest_difference(&left, &right), largest_difference(&right, &left)] {
                assert!(
                    matches!(found, Err(Incomparable::NotFinite { index: at, .. }) if at == index),
                    "{found:?}"
                );
            }
            // Two infinities are no distance apart either.
            assert!(largest_difference(&left, &left).is_err(), "{value} at {index}");
            assert!(largest_magnitude(left).is_err(), "{value} at {index}");
        }
    }
    let relative = largest_difference_by(&[1.0, 2.0], &[1.0, 0.0], |a, b| (a / b - 1.0).abs());
    assert_eq!(relative.unwrap_err().to_string(), "at index 1, 2 is compared with 0");
}

#[test]
fn lists_of_other_lengths_are_not_compared() {
    let found = largest_difference(&[1.0, 2.0], &[1.0]);
    assert_eq!(found.unwrap_err().to_string(), "2 numbers are compared with 1");
    assert!(largest_difference::<f64, f64>(&[], &[1.0]).is_err());
}
