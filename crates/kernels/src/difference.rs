//! How far lists of numbers are apart, for whoever compares results: what is not a finite number is never passed over, as
//! `f32::max` passes over NaN, and lists of other lengths are not compared as far as the shorter one goes.

/// Why lists of numbers are no distance apart.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Incomparable {
    /// Lists of different lengths.
    #[error("{left} numbers are compared with {right}")]
    Lengths {
        /// Of the first list.
        left: usize,
        /// Of the second.
        right: usize,
    },
    /// A number, or a distance, that is infinite or none.
    #[error("at index {index}, {left} is compared with {right}")]
    NotFinite {
        /// Its place.
        index: usize,
        /// In the first list.
        left: f64,
        /// In the second.
        right: f64,
    },
    /// A value of a single list that is infinite or none.
    #[error("the value at index {index} is {value}")]
    NoNumber {
        /// Its place.
        index: usize,
        /// What stands there.
        value: f64,
    },
}

/// The largest distance of two numbers at the same place; 0 of empty lists.
///
/// # Errors
/// Lists of different lengths; a number that is not finite in one of them.
pub fn largest_difference<A, B>(left: &[A], right: &[B]) -> Result<f64, Incomparable>
where
    A: Copy + Into<f64>,
    B: Copy + Into<f64>,
{
    largest_difference_by(left, right, |a, b| (a - b).abs())
}

/// As [`largest_difference`], where `distance` says how far two numbers are apart, such as relative to one of them.
///
/// # Errors
/// As [`largest_difference`], and a distance that is not finite.
pub fn largest_difference_by<A, B>(
    left: &[A],
    right: &[B],
    distance: impl Fn(f64, f64) -> f64,
) -> Result<f64, Incomparable>
where
    A: Copy + Into<f64>,
    B: Copy + Into<f64>,
{
    if left.len() != right.len() {
        return Err(Incomparable::Lengths { left: left.len(), right: right.len() });
    }
    let mut largest = 0.0;
    for (index, (left, right)) in left.iter().zip(right).enumerate() {
        let (left, right): (f64, f64) = ((*left).into(), (*right).into());
        let apart = distance(left, right);
        if !(left.is_finite() && right.is_finite() && apart.is_finite()) {
            return Err(Incomparable::NotFinite { index, left, right });
        }
        if apart > largest {
            largest = apart;
        }
    }
    Ok(largest)
}

/// The largest size of a number, whatever its sign; 0 of none.
///
/// # Errors
/// A number that is not finite.
pub fn largest_magnitude<A: Into<f64>>(values: impl IntoIterator<Item = A>) -> Result<f64, Incomparable> {
    let mut largest = 0.0;
    for (index, value) in values.into_iter().enumerate() {
        let value = value.into();
        if !value.is_finite() {
            return Err(Incomparable::NoNumber { index, value });
        }
        if value.abs() > largest {
            largest = value.abs();
        }
    }
    Ok(largest)
}
