//! The transcendental functions of the kernels: branch-free polynomials in f32 that vectorise on every path and
//! give the same bits on each.

use std::f32::consts::LOG2_E;

/// Added to and subtracted from a float below 2^22, it rounds to the nearest integer, which then stands in the low
/// bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `a0 + x (a1 + x (a2 + …))`.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut value = coefficients[N - 1];
    for i in (0..N - 1).rev() {
        value = value * x + coefficients[i];
    }
    value
}

/// `e^x`, relative error below 1.2e-7 from -87.3 to 88.3. Below -87.7 it is 0, above 88.4 infinity (so results
/// that are not normal are flushed), and NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons written so that NaN passes.
    let x = if x > 88.8 { 88.8 } else { x };
    let x = if x < -88.0 { -88.0 } else { x };
    let shifted = x * LOG2_E + ROUND;
    let n_float = shifted - ROUND;
    let r = (x - n_float * LN2_HIGH) - n_float * LN2_LOW;
    let q = polynomial(r, [0.5, 0.166_665_18, 0.041_666_203, 0.008_368_954, 0.001_395_06]);
    // 2^n by its exponent field: 0 for n = -127, infinity for 128, and the shift drops the bits of ROUND.
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1f32.to_bits()));
    (1.0 + (r + r * r * q)) * scale
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Hyperbolic tangent, relative error below 3e-7.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let square = x * x;
    let p = polynomial(square, [-0.333_332_78, 0.133_313_29, -0.053_729_23, 0.020_602, -0.005_660_780_5]);
    let small = x + x * square * p;
    let large = (1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.6 { small } else { large }
}

/// The normal distribution function `(1 + erf(x / sqrt 2)) / 2`, from `erfc(z) = e^(-z^2) t P(t)`,
/// `t = 1 / (1 + z / 2)`.
#[inline(always)]
pub(crate) fn normal_cdf(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * z);
    let p = polynomial(
        t,
        [
            0.282_064_5,
            0.282_857_04,
            0.238_644_84,
            0.225_541_85,
            -0.098_317_63,
            0.421_274_26,
            -0.670_022_5,
            0.428_928_4,
            -0.123_254_69,
            0.012_283_877,
        ],
    );
    let tail = 0.5 * exp(-0.5 * x * x) * t * p;
    if x > 0.0 { 1.0 - tail } else { tail }
}

/// The error function, relative error below 4e-7.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let coefficients = [
        std::f32::consts::FRAC_2_SQRT_PI,
        -0.376_126_26,
        0.112_835_94,
        -0.026_854_211,
        0.005_189_087,
        -8.016_864e-4,
        7.875_875e-5,
    ];
    let small = x * polynomial(x * x, coefficients);
    let large = (2.0 * normal_cdf(x.abs() * std::f32::consts::SQRT_2) - 1.0).copysign(x);
    if x.abs() < 1.0 { small } else { large }
}

/// Natural logarithm of a positive normal number, absolute error below 1e-7 (1 + |result|).
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    // x = m 2^e with m between the roots of 1/2 and 2.
    let bits = x.to_bits() as i32;
    let e = (bits - std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32) >> 23;
    let f = f32::from_bits((bits - (e << 23)) as u32) - 1.0;
    let q = polynomial(
        f,
        [
            0.333_333_3,
            -0.250_008_23,
            0.200_012_36,
            -0.166_233,
            0.142_015_08,
            -0.131_605_14,
            0.127_636_34,
            -0.076_362_54,
        ],
    );
    let e = e as f32;
    let square = f * f;
    e * LN2_HIGH + (f + (f * square * q - 0.5 * square + e * LN2_LOW))
}

/// Sine and cosine of `bits / 2^32` of a full turn, absolute error below 2e-7.
#[inline(always)]
pub(crate) fn sin_cos_turn(bits: u32) -> (f32, f32) {
    // The nearest quarter turn, and what remains: at most an eighth of a turn.
    let quarter = bits.wrapping_add(1 << 29) >> 30;
    let u = bits.wrapping_sub(quarter << 30) as i32 as f32 * (1.0 / 4_294_967_296.0);
    let square = u * u;
    let s = u * polynomial(square, [std::f32::consts::TAU, -41.341_663, 81.592_55, -75.402_07]);
    let c = polynomial(square, [1.0, -19.739_152, 64.921_25, -83.592_61]);
    let (sin, cos) = if quarter & 1 == 0 { (s, c) } else { (c, s) };
    let negate = |x: f32, bit: u32| f32::from_bits(x.to_bits() ^ (bit << 31));
    (negate(sin, (quarter >> 1) & 1), negate(cos, ((quarter + 1) >> 1) & 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(range: (f32, f32), ours: impl Fn(f32) -> f32, reference: impl Fn(f64) -> f64) -> f64 {
        let n = 200_000;
        (0..=n)
            .map(|i| range.0 + (range.1 - range.0) * (i as f32 / n as f32))
            .map(|x| {
                let (got, want) = (f64::from(ours(x)), reference(f64::from(x)));
                if want == 0.0 { got.abs() } else { ((got - want) / want).abs() }
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn exp_is_accurate_and_saturates() {
        assert!(worst((-87.3, 88.3), exp, f64::exp) < 1.2e-7);
        assert!(worst((-1.0, 1.0), exp, f64::exp) < 1.2e-7);
        assert_eq!(exp(0.0), 1.0);
        for (low, high) in
            [(f32::NEG_INFINITY, f32::INFINITY), (-1e30, 1e30), (-88.0, 88.4), (-1000.0, 1000.0)]
        {
            assert_eq!((exp(low), exp(high)), (0.0, f32::INFINITY));
        }
        assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
    }

    #[test]
    fn tanh_and_sigmoid_are_accurate() {
        assert!(worst((-12.0, 12.0), tanh, f64::tanh) < 3e-7);
        assert!(worst((-80.0, 80.0), sigmoid, |x| 1.0 / (1.0 + (-x).exp())) < 3e-7);
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
    }

    #[test]
    fn normal_cdf_matches_known_values() {
        let known = [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_542_9),
            (-1.0, 0.158_655_253_931_457_05),
            (0.3, 0.617_911_422_188_952_7),
            (-2.5, 0.006_209_665_325_776_132),
            (-5.0, 2.866_515_718_791_939_4e-7),
            (3.0, 0.998_650_101_968_369_9),
        ];
        for (x, want) in known {
            let got = f64::from(normal_cdf(x));
            assert!(((got - want) / want).abs() < 1e-6, "{x}: {got} against {want}");
        }
    }

    #[test]
    fn erf_matches_its_series() {
        // Its power series; the terms of the range are small enough for f64.
        let series = |x: f64| {
            let (mut term, mut sum) = (x, x);
            for n in 1..120 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            sum * std::f64::consts::FRAC_2_SQRT_PI
        };
        assert!(worst((-3.5, 3.5), erf, series) < 4e-7);
        assert_eq!((erf(0.0), erf(30.0), erf(f32::NEG_INFINITY)), (0.0, 1.0, -1.0));
        assert!(erf(f32::NAN).is_nan() && erf(1e-30) > 1.1e-30);
    }

    #[test]
    fn ln_and_turns_are_accurate() {
        for i in 0..200_000u32 {
            let bits = i.wrapping_mul(0x9e37_79b9);
            let x = (f64::from(bits) + 1.0) / 4_294_967_296.0;
            let (got, want) = (f64::from(ln(x as f32)), f64::from(x as f32).ln());
            assert!((got - want).abs() < 1e-7 * (1.0 + want.abs()), "ln {x}: {got} {want}");
            let angle = std::f64::consts::TAU * f64::from(bits) / 4_294_967_296.0;
            let (sin, cos) = sin_cos_turn(bits);
            assert!((f64::from(sin) - angle.sin()).abs() < 2e-7, "sin {angle}");
            assert!((f64::from(cos) - angle.cos()).abs() < 2e-7, "cos {angle}");
        }
        assert_eq!(ln(1.0), 0.0);
    }
}
