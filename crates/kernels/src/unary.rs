//! Functions of one element, with their slopes.

use std::f32::consts::{FRAC_2_SQRT_PI, LN_2};

use super::Store;
use super::glu::{Activation, per_activation};
use super::math::{erf, exp, ln, sigmoid};
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
    /// `x / c`.
    DividedBy(f32),
    /// `c / x`.
    Over(f32),
    /// `1 / sqrt(x)`.
    Rsqrt,
    /// The square root, with the slope 0 at 0: of sums of squares, whose terms are all 0 there.
    Root,
    /// `2^x`.
    Exp2,
    /// `e^x - 1`, exact near 0.
    Expm1,
    /// The logarithm to base 2.
    Log2,
    /// `log(1 + x)`, exact near 0.
    Log1p,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// The error function.
    Erf,
    /// Rounded down.
    Floor,
    /// Rounded up.
    Ceil,
    /// Rounded to the nearest integer, halves to the even one.
    Round,
    /// Rounded towards zero.
    Trunc,
    /// -1, 0 or 1; 0 for NaN.
    Sign,
    /// `x` above 0, else `slope x`.
    LeakyRelu(f32),
    /// `x` above 0, else `alpha (e^x - 1)`.
    Elu(f32),
    /// `log(1 + e^(beta x)) / beta`; `x` where `beta x` is above the threshold.
    Softplus {
        /// The steepness at 0.
        beta: f32,
        /// Where the function becomes the identity.
        threshold: f32,
    },
    /// `x` kept inside `low..=high`; the slope is 1 between the bounds, and 0 outside of and at them.
    Hardtanh {
        /// The least value.
        low: f32,
        /// The largest value.
        high: f32,
    },
    /// `Elu` and its factor with which activations keep mean 0 and variance 1 (Klambauer et al. 2017).
    Selu,
    /// `x tanh(log(1 + e^x))`.
    Mish,
    /// `x / 6 + 1 / 2`, kept inside `0..=1`.
    Hardsigmoid,
    /// `x` times its `Hardsigmoid`.
    Hardswish,
    /// The logarithm of `1 / (1 + e^-x)`.
    LogSigmoid,
    /// `x / (1 + |x|)`.
    Softsign,
}

/// The factor of [`Unary::Selu`], and what its curve below 0 tends to before it.
const SELU: (f32, f32) = (1.050_701, 1.673_263_2);

/// `tanh(log(1 + e^x))`: 1 from 20 on.
#[inline(always)]
fn mish_gate(x: f32) -> f32 {
    let e = exp(if x > 20.0 { 20.0 } else { x });
    let n = e * (e + 2.0);
    n / (n + 2.0)
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

/// Loops are written out in place: a closure that is not inlined is compiled without the instructions of the code path.
macro_rules! map {
    ($x:ident, $y:ident, |$value:ident| $f:expr) => {
        for (y, x) in $y.iter_mut().zip($x) {
            let $value = x.to_f32();
            *y = T::from_f32($f);
        }
    };
}

elementwise! {
    /// `y = f(x)`.
    pub fn forward[T: Float](f: Unary)(x: &[T]) -> (y: &mut [T]) {
        match f {
            Unary::Affine { scale, offset } => map!(x, y, |x| scale * x + offset),
            Unary::Exp => map!(x, y, |x| exp(x)),
            Unary::Log => map!(x, y, |x| log(x)),
            Unary::Sqrt => map!(x, y, |x| x.sqrt()),
            Unary::Square => map!(x, y, |x| x * x),
            Unary::Pow(p) => map!(x, y, |x| x.powf(p)),
            Unary::Abs => map!(x, y, |x| x.abs()),
            // Comparisons written so that NaN passes.
            Unary::Clamp { low, high } => map!(x, y, |x| if x < low { low } else if x > high { high } else { x }),
            Unary::Activation(act) => per_activation!(act, act => map!(x, y, |x| act.value(x))),
            Unary::DividedBy(c) => map!(x, y, |x| x / c),
            Unary::Over(c) => map!(x, y, |x| c / x),
            Unary::Rsqrt => map!(x, y, |x| 1.0 / x.sqrt()),
            Unary::Root => map!(x, y, |x| x.sqrt()),
            Unary::Exp2 => map!(x, y, |x| x.exp2()),
            Unary::Expm1 => map!(x, y, |x| x.exp_m1()),
            Unary::Log2 => map!(x, y, |x| x.log2()),
            Unary::Log1p => map!(x, y, |x| x.ln_1p()),
            Unary::Sin => map!(x, y, |x| x.sin()),
            Unary::Cos => map!(x, y, |x| x.cos()),
            Unary::Erf => map!(x, y, |x| erf(x)),
            Unary::Floor => map!(x, y, |x| x.floor()),
            Unary::Ceil => map!(x, y, |x| x.ceil()),
            Unary::Round => map!(x, y, |x| x.round_ties_even()),
            Unary::Trunc => map!(x, y, |x| x.trunc()),
            Unary::Sign => map!(x, y, |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { 0.0 }),
            Unary::LeakyRelu(slope) => map!(x, y, |x| if x > 0.0 { x } else { slope * x }),
            Unary::Elu(alpha) => map!(x, y, |x| if x > 0.0 { x } else { alpha * x.exp_m1() }),
            Unary::Softplus { beta, threshold } => {
                map!(x, y, |x| if beta * x > threshold { x } else { (beta * x).exp().ln_1p() / beta });
            }
            Unary::Hardtanh { low, high } => map!(x, y, |x| if x < low { low } else if x > high { high } else { x }),
            Unary::Selu => map!(x, y, |x| SELU.0 * if x > 0.0 { x } else { SELU.1 * x.exp_m1() }),
            Unary::Mish => map!(x, y, |x| x * mish_gate(x)),
            Unary::Hardsigmoid => map!(x, y, |x| (x + 3.0).clamp(0.0, 6.0) / 6.0),
            Unary::Hardswish => map!(x, y, |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
            Unary::LogSigmoid => map!(x, y, |x| x.min(0.0) - exp(-x.abs()).ln_1p()),
            Unary::Softsign => map!(x, y, |x| x / (1.0 + x.abs())),
        }
    }
}

macro_rules! chain {
    ($x:ident, $dy:ident, $dx:ident, $store:ident, |$value:pat_param| $slope:expr) => {
        for ((dx, x), dy) in $dx.iter_mut().zip($x).zip($dy) {
            let $value = x.to_f32();
            $store.put(dx, dy.to_f32() * $slope);
        }
    };
}

elementwise! {
    /// `dx = dy * f'(x)`, overwritten or added to.
    pub fn backward[T: Float](f: Unary, store: Store)(x: &[T], dy: &[T]) -> (dx: &mut [T]) {
        match f {
            Unary::Affine { scale, .. } => chain!(x, dy, dx, store, |_| scale),
            Unary::Exp => chain!(x, dy, dx, store, |x| exp(x)),
            Unary::Log => chain!(x, dy, dx, store, |x| 1.0 / x),
            Unary::Sqrt => chain!(x, dy, dx, store, |x| 0.5 / x.sqrt()),
            Unary::Square => chain!(x, dy, dx, store, |x| 2.0 * x),
            Unary::Pow(0.0) => chain!(x, dy, dx, store, |_| 0.0),
            Unary::Pow(p) => chain!(x, dy, dx, store, |x| p * x.powf(p - 1.0)),
            Unary::Abs => chain!(x, dy, dx, store, |x| if x == 0.0 { 0.0 } else { 1f32.copysign(x) }),
            Unary::Clamp { low, high } => chain!(x, dy, dx, store, |x| if x < low || x > high { 0.0 } else { 1.0 }),
            Unary::Activation(act) => per_activation!(act, act => chain!(x, dy, dx, store, |x| act.slope(x))),
            Unary::DividedBy(c) => chain!(x, dy, dx, store, |_| 1.0 / c),
            Unary::Over(c) => chain!(x, dy, dx, store, |x| -c / (x * x)),
            Unary::Rsqrt => chain!(x, dy, dx, store, |x| -0.5 / (x * x.sqrt())),
            Unary::Root => chain!(x, dy, dx, store, |x| if x == 0.0 { 0.0 } else { 0.5 / x.sqrt() }),
            Unary::Exp2 => chain!(x, dy, dx, store, |x| LN_2 * x.exp2()),
            Unary::Expm1 => chain!(x, dy, dx, store, |x| exp(x)),
            Unary::Log2 => chain!(x, dy, dx, store, |x| 1.0 / (x * LN_2)),
            Unary::Log1p => chain!(x, dy, dx, store, |x| 1.0 / (1.0 + x)),
            Unary::Sin => chain!(x, dy, dx, store, |x| x.cos()),
            Unary::Cos => chain!(x, dy, dx, store, |x| -x.sin()),
            Unary::Erf => chain!(x, dy, dx, store, |x| FRAC_2_SQRT_PI * exp(-x * x)),
            Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc | Unary::Sign => chain!(x, dy, dx, store, |_| 0.0),
            Unary::LeakyRelu(slope) => chain!(x, dy, dx, store, |x| if x > 0.0 { 1.0 } else { slope }),
            Unary::Elu(alpha) => chain!(x, dy, dx, store, |x| if x > 0.0 { 1.0 } else { alpha * exp(x) }),
            Unary::Softplus { beta, threshold } => {
                chain!(x, dy, dx, store, |x| if beta * x > threshold { 1.0 } else { sigmoid(beta * x) });
            }
            Unary::Hardtanh { low, high } => {
                chain!(x, dy, dx, store, |x| if x <= low || x >= high { 0.0 } else { 1.0 });
            }
            Unary::Selu => chain!(x, dy, dx, store, |x| SELU.0 * if x > 0.0 { 1.0 } else { SELU.1 * exp(x) }),
            Unary::Mish => chain!(x, dy, dx, store, |x| {
                let gate = mish_gate(x);
                gate + x * (1.0 - gate * gate) * sigmoid(x)
            }),
            Unary::Hardsigmoid => chain!(x, dy, dx, store, |x| if x <= -3.0 || x >= 3.0 { 0.0 } else { 1.0 / 6.0 }),
            Unary::Hardswish => chain!(x, dy, dx, store, |x| {
                if x <= -3.0 { 0.0 } else if x >= 3.0 { 1.0 } else { x / 3.0 + 0.5 }
            }),
            Unary::LogSigmoid => chain!(x, dy, dx, store, |x| sigmoid(-x)),
            Unary::Softsign => chain!(x, dy, dx, store, |x| {
                let below = 1.0 + x.abs();
                1.0 / (below * below)
            }),
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
        let cases: [(Unary, Formula, Formula); 29] = [
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
            (Unary::DividedBy(-3.0), |x| x / -3.0, |_| -1.0 / 3.0),
            (Unary::Over(0.5), |x| 0.5 / x, |x| -0.5 / (x * x)),
            (Unary::Rsqrt, |x| 1.0 / x.sqrt(), |x| -0.5 * x.powf(-1.5)),
            (Unary::Root, f64::sqrt, |x| 0.5 / x.sqrt()),
            (Unary::Exp2, f64::exp2, |x| x.exp2() * std::f64::consts::LN_2),
            (Unary::Expm1, f64::exp_m1, f64::exp),
            (Unary::Log2, f64::log2, |x| 1.0 / (x * std::f64::consts::LN_2)),
            (Unary::Log1p, f64::ln_1p, |x| 1.0 / (1.0 + x)),
            (Unary::Sin, f64::sin, f64::cos),
            (Unary::Cos, f64::cos, |x| -x.sin()),
            (Unary::Floor, f64::floor, |_| 0.0),
            (Unary::Ceil, f64::ceil, |_| 0.0),
            (Unary::Round, f64::round_ties_even, |_| 0.0),
            (Unary::Trunc, f64::trunc, |_| 0.0),
            (Unary::Sign, f64::signum, |_| 0.0),
            (
                Unary::Softplus { beta: 2.0, threshold: 20.0 },
                |x| (2.0 * x).exp().ln_1p() / 2.0,
                |x| 1.0 / (1.0 + (-2.0 * x).exp()),
            ),
            (
                Unary::Hardtanh { low: 0.5, high: 1.0 },
                |x| x.clamp(0.5, 1.0),
                |x| f64::from(x > 0.5 && x < 1.0),
            ),
            (Unary::LeakyRelu(0.1), |x| x, |_| 1.0),
            (
                Unary::Mish,
                |x| x * x.exp().ln_1p().tanh(),
                |x| {
                    let gate = x.exp().ln_1p().tanh();
                    gate + x * (1.0 - gate * gate) / (1.0 + (-x).exp())
                },
            ),
            (Unary::LogSigmoid, |x| -(-x).exp().ln_1p(), |x| 1.0 / (1.0 + x.exp())),
            (Unary::Softsign, |x| x / (1.0 + x), |x| 1.0 / (1.0 + x).powi(2)),
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
