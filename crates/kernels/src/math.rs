//! The transcendental functions of the kernels: branch-free polynomials in f32 that vectorise on every path and
//! give bitwise identical results on each.

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
pub fn exp(x: f32) -> f32 {
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
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Hyperbolic tangent, relative error below 3e-7.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let square = x * x;
    let p = polynomial(square, [-0.333_332_78, 0.133_313_29, -0.053_729_23, 0.020_602, -0.005_660_780_5]);
    let small = x + x * square * p;
    let large = (1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.6 { small } else { large }
}

/// The normal distribution function `(1 + erf(x / sqrt 2)) / 2`, from `erfc(z) = e^(-z^2) t P(t)`,
/// `t = 1 / (1 + z / 2)`.
#[inline(always)]
pub fn normal_cdf(x: f32) -> f32 {
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
pub fn erf(x: f32) -> f32 {
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
pub fn ln(x: f32) -> f32 {
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
pub fn sin_cos_turn(bits: u32) -> (f32, f32) {
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
