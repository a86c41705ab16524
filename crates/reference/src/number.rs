//! Element types as a reference sees them, and reproducible numbers in them.

use half::{bf16, f16};

/// An element type of kernels.
pub trait Number: Copy + PartialEq + std::fmt::Debug + 'static {
    /// A bound of the relative error of one rounding to this type.
    const ROUNDING: f64;

    /// The nearest number of this type, by way of f32.
    fn of(x: f64) -> Self;

    /// The same number in f64.
    fn f64(self) -> f64;
}

impl Number for f32 {
    const ROUNDING: f64 = 6e-8;

    fn of(x: f64) -> f32 {
        x as f32
    }

    fn f64(self) -> f64 {
        f64::from(self)
    }
}

impl Number for bf16 {
    const ROUNDING: f64 = 4e-3;

    fn of(x: f64) -> bf16 {
        bf16::from_f32(x as f32)
    }

    fn f64(self) -> f64 {
        f64::from(self.to_f32())
    }
}

impl Number for f16 {
    const ROUNDING: f64 = 5e-4;

    fn of(x: f64) -> f16 {
        f16::from_f32(x as f32)
    }

    fn f64(self) -> f64 {
        f64::from(self.to_f32())
    }
}

/// `n` values in about -2..2, different for each seed, exact in `T`.
pub fn values<T: Number>(seed: u64, n: usize) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        T::of((state >> 40) as f64 / f64::from(1 << 22) - 2.0)
    };
    (0..n).map(|_| next()).collect()
}

/// The values times a factor, and then plus a number.
pub fn scaled<T: Number>(seed: u64, n: usize, by: f64, plus: f64) -> Vec<T> {
    values::<T>(seed, n).into_iter().map(|x| T::of(by * x.f64() + plus)).collect()
}

/// Values that are not negative.
pub fn magnitudes<T: Number>(seed: u64, n: usize) -> Vec<T> {
    values::<T>(seed, n).into_iter().map(|x| T::of(x.f64().abs())).collect()
}

/// `n` integers in `0..bound`.
pub fn indices(seed: u64, n: usize, bound: usize) -> Vec<i32> {
    values::<f32>(seed, n).iter().map(|x| ((x + 2.0) / 4.0 * bound as f32) as i32 % bound as i32).collect()
}

/// The values in f64.
pub fn f64s<T: Number>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| x.f64()).collect()
}
