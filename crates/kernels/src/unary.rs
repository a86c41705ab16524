//! Functions of one element, with their slopes.

use std::f32::consts::{FRAC_2_SQRT_PI, LN_2};

use crate::Store;
use crate::dtype::Float;
use crate::glu::{Activation, per_activation};
use crate::math::{
    SHORT_ANGLE, cos, erf, exp, exp2, expm1, log, log1p, log2, pow, short_cos, short_sin, sigmoid, sin,
};
use crate::pieces::elementwise;

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
    /// Rounded toward zero.
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

/// Whether all angles are short: the functions of those have no branches.
#[inline(always)]
fn are_short<T: Float>(x: &[T]) -> bool {
    let magnitudes = x.iter().map(|x| x.to_f32().abs().to_bits());
    magnitudes.fold(0, u32::max) < SHORT_ANGLE.to_bits()
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
            Unary::Pow(p) => map!(x, y, |x| pow(x, p)),
            Unary::Abs => map!(x, y, |x| x.abs()),
            // Comparisons written so that NaN passes.
            Unary::Clamp { low, high } => map!(x, y, |x| if x < low { low } else if x > high { high } else { x }),
            Unary::Activation(act) => per_activation!(act, act => map!(x, y, |x| act.value(x))),
            Unary::DividedBy(c) => map!(x, y, |x| x / c),
            Unary::Over(c) => map!(x, y, |x| c / x),
            Unary::Rsqrt => map!(x, y, |x| 1.0 / x.sqrt()),
            Unary::Root => map!(x, y, |x| x.sqrt()),
            Unary::Exp2 => map!(x, y, |x| exp2(x)),
            Unary::Expm1 => map!(x, y, |x| expm1(x)),
            Unary::Log2 => map!(x, y, |x| log2(x)),
            Unary::Log1p => map!(x, y, |x| log1p(x)),
            Unary::Sin if are_short(x) => map!(x, y, |x| short_sin(x)),
            Unary::Sin => map!(x, y, |x| sin(x)),
            Unary::Cos if are_short(x) => map!(x, y, |x| short_cos(x)),
            Unary::Cos => map!(x, y, |x| cos(x)),
            Unary::Erf => map!(x, y, |x| erf(x)),
            Unary::Floor => map!(x, y, |x| x.floor()),
            Unary::Ceil => map!(x, y, |x| x.ceil()),
            Unary::Round => map!(x, y, |x| x.round_ties_even()),
            Unary::Trunc => map!(x, y, |x| x.trunc()),
            Unary::Sign => map!(x, y, |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { 0.0 }),
            Unary::LeakyRelu(slope) => map!(x, y, |x| if x > 0.0 { x } else { slope * x }),
            Unary::Elu(alpha) => map!(x, y, |x| if x > 0.0 { x } else { alpha * expm1(x) }),
            Unary::Softplus { beta, threshold } => {
                map!(x, y, |x| if beta * x > threshold { x } else { log1p(exp(beta * x)) / beta });
            }
            Unary::Hardtanh { low, high } => map!(x, y, |x| if x < low { low } else if x > high { high } else { x }),
            Unary::Selu => map!(x, y, |x| SELU.0 * if x > 0.0 { x } else { SELU.1 * expm1(x) }),
            Unary::Mish => map!(x, y, |x| x * mish_gate(x)),
            Unary::Hardsigmoid => map!(x, y, |x| (x + 3.0).clamp(0.0, 6.0) / 6.0),
            Unary::Hardswish => map!(x, y, |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
            Unary::LogSigmoid => map!(x, y, |x| x.min(0.0) - log1p(exp(-x.abs()))),
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
            Unary::Pow(p) => chain!(x, dy, dx, store, |x| p * pow(x, p - 1.0)),
            Unary::Abs => chain!(x, dy, dx, store, |x| if x == 0.0 { 0.0 } else { 1f32.copysign(x) }),
            Unary::Clamp { low, high } => chain!(x, dy, dx, store, |x| if x < low || x > high { 0.0 } else { 1.0 }),
            Unary::Activation(act) => per_activation!(act, act => chain!(x, dy, dx, store, |x| act.slope(x))),
            Unary::DividedBy(c) => chain!(x, dy, dx, store, |_| 1.0 / c),
            Unary::Over(c) => chain!(x, dy, dx, store, |x| -c / (x * x)),
            Unary::Rsqrt => chain!(x, dy, dx, store, |x| -0.5 / (x * x.sqrt())),
            Unary::Root => chain!(x, dy, dx, store, |x| if x == 0.0 { 0.0 } else { 0.5 / x.sqrt() }),
            Unary::Exp2 => chain!(x, dy, dx, store, |x| LN_2 * exp2(x)),
            Unary::Expm1 => chain!(x, dy, dx, store, |x| exp(x)),
            Unary::Log2 => chain!(x, dy, dx, store, |x| 1.0 / (x * LN_2)),
            Unary::Log1p => chain!(x, dy, dx, store, |x| 1.0 / (1.0 + x)),
            Unary::Sin if are_short(x) => chain!(x, dy, dx, store, |x| short_cos(x)),
            Unary::Sin => chain!(x, dy, dx, store, |x| cos(x)),
            Unary::Cos if are_short(x) => chain!(x, dy, dx, store, |x| -short_sin(x)),
            Unary::Cos => chain!(x, dy, dx, store, |x| -sin(x)),
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
