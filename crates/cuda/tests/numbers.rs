//! What the tests share: element types as the host sees them, reproducible data, comparisons with f64.

use half::{bf16, f16};
use oarlock_cuda::Element;
use oarlock_cuda::geometry::NORM_BLOCK;

/// A type that device memory can hold.
pub trait Plain: Copy + PartialEq + std::fmt::Debug + 'static {
    const ELEMENT: Element;
}

/// A float of kernels.
pub trait Float: Plain {
    fn of(x: f64) -> Self;
    fn f64(self) -> f64;
    /// A bound of the error of one rounding.
    const ROUNDING: f64;
}

macro_rules! plain {
    ($($t:ty = $element:ident),+) => { $(impl Plain for $t { const ELEMENT: Element = Element::$element; })+ };
}
plain!(f32 = F32, f64 = F64, bf16 = BF16, f16 = F16, i8 = I8, u8 = U8, i32 = I32, u32 = U32, u64 = U64);

impl Float for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }
    fn f64(self) -> f64 {
        f64::from(self)
    }
    const ROUNDING: f64 = 6e-8;
}

impl Float for bf16 {
    fn of(x: f64) -> bf16 {
        bf16::from_f32(x as f32)
    }
    fn f64(self) -> f64 {
        f64::from(self.to_f32())
    }
    const ROUNDING: f64 = 4e-3;
}

impl Float for f16 {
    fn of(x: f64) -> f16 {
        f16::from_f32(x as f32)
    }
    fn f64(self) -> f64 {
        f64::from(self.to_f32())
    }
    const ROUNDING: f64 = 5e-4;
}

/// `n` values in about -2..2, different for each seed, exact in `T`.
pub fn values<T: Float>(seed: u64, n: usize) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        T::of((state >> 40) as f64 / f64::from(1 << 22) - 2.0)
    };
    (0..n).map(|_| next()).collect()
}

/// The values as f64, for references.
pub fn f64s<T: Float>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| x.f64()).collect()
}

/// The squared norms of blocks, as `squared_norm` computes them.
pub fn block_squares(x: &[f32]) -> Vec<f64> {
    let square = |x: &f32| f64::from(*x) * f64::from(*x);
    x.chunks(NORM_BLOCK).map(|block| block.iter().map(square).sum()).collect()
}

/// `n` integers in `0..bound`.
pub fn indices(seed: u64, n: usize, bound: usize) -> Vec<i32> {
    values::<f32>(seed, n).iter().map(|x| ((x + 2.0) / 4.0 * bound as f32) as i32 % bound as i32).collect()
}

/// Rows by their ids: the rows, where those of each id begin, the ids.
pub fn by_id(ids: &[i32]) -> [Vec<i32>; 3] {
    let mut order: Vec<i32> = (0..ids.len() as i32).collect();
    order.sort_by_key(|&row| ids[row as usize]);
    let (mut starts, mut unique) = (vec![], vec![]);
    for (at, &row) in order.iter().enumerate() {
        if unique.last() != Some(&ids[row as usize]) {
            unique.push(ids[row as usize]);
            starts.push(at as i32);
        }
    }
    starts.push(order.len() as i32);
    [order, starts, unique]
}

/// As above, with an entry for each row: those behind the last id have none.
pub fn padded_by_id(ids: &[i32]) -> [Vec<i32>; 3] {
    let [order, mut starts, mut unique] = by_id(ids);
    starts.resize(ids.len() + 1, ids.len() as i32);
    unique.resize(ids.len(), -1);
    [order, starts, unique]
}

/// Asserts `|got - want| <= tolerance * (1 + |want|)` for each element.
#[track_caller]
pub fn assert_close<T: Float>(what: &str, got: &[T], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (got, want)) in f64s(got).iter().zip(want).enumerate() {
        let close = (got - want).abs() <= tolerance * (1.0 + want.abs()) || got == want;
        assert!(close, "{what}, element {i}: got {got}, want {want}");
    }
}

/// The error function, by its series and its continued fraction, to about 1e-15.
pub fn erf(x: f64) -> f64 {
    let square = x * x;
    if x.abs() < 3.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..100 {
            term *= -square / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let fraction = (1..60).rev().fold(x.abs(), |below, k| x.abs() + f64::from(k) / 2.0 / below);
    (1.0 - (-square).exp() / (fraction * std::f64::consts::PI.sqrt())).copysign(x)
}

#[test]
fn the_error_function_is_right() {
    for (x, want) in
        [(0.5, 0.520_499_877_813_046_5), (2.0, 0.995_322_265_018_952_7), (3.5, 0.999_999_256_901_627_7)]
    {
        assert!((erf(x) - want).abs() < 1e-13 && (erf(-x) + want).abs() < 1e-13, "{x}: {}", erf(x));
    }
}
