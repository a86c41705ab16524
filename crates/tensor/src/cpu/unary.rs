//! Functions of one element, with their slopes.

use super::Store;
use super::glu::{Activation, per_activation};
use super::math::{exp, ln};
use super::pieces::elementwise;
use crate::dtype::Float;

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// `scale x + offset`.
    Affine {
        /// The factor.
        scale: f32,
        /// What is added.
        offset: f32,
    },
    /// `e^x`.
    Exp,
    /// The natural logarithm.
    Log,
    /// The square root.
    Sqrt,
    /// `x x`.
    Square,
    /// `x^p`.
    Pow(f32),
    /// The absolute value; its slope at 0 is 0.
    Abs,
    /// `x` kept inside `low..=high`; the slope is 1 there and 0 outside.
    Clamp {
        /// The least value.
        low: f32,
        /// The largest value.
        high: f32,
    },
    /// An activation function.
    Activation(Activation),
}

/// The logarithm of any float: -inf at 0, NaN below it.
#[inline(always)]
fn log(x: f32) -> f32 {
    const LIFT: f32 = 16_777_216.0;
    let tiny = x < f32::MIN_POSITIVE;
    let lifted = if tiny { x * LIFT } else { x };
    let value = ln(lifted) - if tiny { 16.635_532 } else { 0.0 };
    let value = if x == f32::INFINITY { x } else { value };
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    if x >= 0.0 { value } else { f32::NAN }
}

#[inline(always)]
fn map<T: Float>(x: &[T], y: &mut [T], f: impl Fn(f32) -> f32) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = T::from_f32(f(x.to_f32()));
    }
}

elementwise! {
    /// `y = f(x)`.
    pub fn forward[T: Float](f: Unary)(x: &[T]) -> (y: &mut [T]) {
        match f {
            Unary::Affine { scale, offset } => map(x, y, |x| scale * x + offset),
            Unary::Exp => map(x, y, exp),
            Unary::Log => map(x, y, log),
            Unary::Sqrt => map(x, y, f32::sqrt),
            Unary::Square => map(x, y, |x| x * x),
            Unary::Pow(p) => map(x, y, |x| x.powf(p)),
            Unary::Abs => map(x, y, f32::abs),
            // Comparisons written so that NaN passes.
            Unary::Clamp { low, high } => map(x, y, |x| if x < low { low } else if x > high { high } else { x }),
            Unary::Activation(act) => per_activation!(act, act => map(x, y, |x| act.value(x))),
        }
    }
}

#[inline(always)]
fn chain<T: Float>(x: &[T], dy: &[T], dx: &mut [T], store: Store, slope: impl Fn(f32) -> f32) {
    for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
        store.put(dx, dy.to_f32() * slope(x.to_f32()));
    }
}

elementwise! {
    /// `dx = dy * f'(x)`, overwritten or added to.
    pub fn backward[T: Float](f: Unary, store: Store)(x: &[T], dy: &[T]) -> (dx: &mut [T]) {
        match f {
            Unary::Affine { scale, .. } => chain(x, dy, dx, store, |_| scale),
            Unary::Exp => chain(x, dy, dx, store, exp),
            Unary::Log => chain(x, dy, dx, store, |x| 1.0 / x),
            Unary::Sqrt => chain(x, dy, dx, store, |x| 0.5 / x.sqrt()),
            Unary::Square => chain(x, dy, dx, store, |x| 2.0 * x),
            Unary::Pow(0.0) => chain(x, dy, dx, store, |_| 0.0),
            Unary::Pow(p) => chain(x, dy, dx, store, |x| p * x.powf(p - 1.0)),
            Unary::Abs => chain(x, dy, dx, store, |x| if x == 0.0 { 0.0 } else { 1f32.copysign(x) }),
            Unary::Clamp { low, high } => chain(x, dy, dx, store, |x| if x < low || x > high { 0.0 } else { 1.0 }),
            Unary::Activation(act) => per_activation!(act, act => chain(x, dy, dx, store, |x| act.slope(x))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::pieces::TASK_ELEMS;
    use crate::cpu::testing::{assert_close, f64s, same_everywhere, values};

    type Formula = fn(f64) -> f64;

    #[test]
    fn functions_and_slopes_match_their_formulas() {
        let cases: [(Unary, Formula, Formula); 8] = [
            (Unary::Affine { scale: -1.5, offset: 0.25 }, |x| 0.25 - 1.5 * x, |_| -1.5),
            (Unary::Exp, f64::exp, f64::exp),
            (Unary::Log, f64::ln, |x| 1.0 / x),
            (Unary::Sqrt, f64::sqrt, |x| 0.5 / x.sqrt()),
            (Unary::Square, |x| x * x, |x| 2.0 * x),
            (Unary::Pow(1.5), |x| x.powf(1.5), |x| 1.5 * x.sqrt()),
            (Unary::Abs, f64::abs, f64::signum),
            (
                Unary::Clamp { low: 0.5, high: 1.0 },
                |x| x.clamp(0.5, 1.0),
                |x| f64::from((0.5..=1.0).contains(&x)),
            ),
        ];
        let n = TASK_ELEMS + 77;
        // Away from 0, where slopes are large.
        let x: Vec<f32> = values::<f32>(1, n).into_iter().map(|x| x.abs() + 0.1).collect();
        let dy = values::<f32>(2, n);
        for (f, value, slope) in cases {
            let (y, dx, added) = same_everywhere(|cpu| {
                let (mut y, mut dx, mut added) = (x.clone(), x.clone(), x.clone());
                forward(cpu, f, &x, &mut y);
                backward(cpu, f, Store::Overwrite, &x, &dy, &mut dx);
                backward(cpu, f, Store::Add, &x, &dy, &mut added);
                (y, dx, added)
            });
            let (x, dy) = (f64s(&x), f64s(&dy));
            let want: Vec<f64> = x.iter().zip(&dy).map(|(x, dy)| slope(*x) * dy).collect();
            assert_close(&y, &x.iter().map(|x| value(*x)).collect::<Vec<_>>(), 5e-7);
            assert_close(&dx, &want, 5e-7);
            assert_close(&added, &want.iter().zip(x).map(|(d, x)| d + x).collect::<Vec<_>>(), 5e-7);
        }
    }

    #[test]
    fn logarithms_at_the_edges() {
        assert_eq!((log(0.0), log(f32::INFINITY)), (f32::NEG_INFINITY, f32::INFINITY));
        assert!(log(-1.0).is_nan() && log(f32::NAN).is_nan() && log(f32::NEG_INFINITY).is_nan());
        for x in [1e-45f32, 1e-40, f32::MIN_POSITIVE, f32::MAX] {
            assert!((f64::from(log(x)) / f64::from(x).ln() - 1.0).abs() < 3e-7, "{x}");
        }
    }
}
