//! The transcendental functions of the kernels: branch-free polynomials in f32 that vectorise on every path and
//! give bitwise identical results on each.

use std::f32::consts::LOG2_E;
use std::ops::{Add, Mul};

/// Added to and subtracted from a float below 2^22, it rounds to the nearest integer, which then stands in the low
/// bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `a0 + x (a1 + x (a2 + …))`.
#[inline(always)]
fn polynomial<T: Copy + Add<Output = T> + Mul<Output = T>, const N: usize>(x: T, coefficients: [T; N]) -> T {
    let mut value = coefficients[N - 1];
    for i in (0..N - 1).rev() {
        value = value * x + coefficients[i];
    }
    value
}

/// `(e^r - 1 - r) / r^2` for `r` between the halves of -ln 2 and ln 2.
#[inline(always)]
fn exp_rest(r: f32) -> f32 {
    polynomial(r, [0.5, 0.166_665_18, 0.041_666_203, 0.008_368_954, 0.001_395_06])
}

/// `x = n ln 2 + r` with `n` the nearest integer, as the float that has it in its low bits.
#[inline(always)]
fn reduce(x: f32) -> (f32, f32) {
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    (shifted, (x - n * LN2_HIGH) - n * LN2_LOW)
}

/// `e^x`, relative error below 1.2e-7 from -87.3 to 88.3. Below -87.7 it is 0, above 88.4 infinity (so results
/// that are not normal are flushed), and NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Comparisons written so that NaN passes.
    let x = if x > 88.8 { 88.8 } else { x };
    let x = if x < -88.0 { -88.0 } else { x };
    let (shifted, r) = reduce(x);
    // 2^n by its exponent field: 0 for n = -127, infinity for 128, and the shift drops the bits of ROUND.
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1f32.to_bits()));
    (1.0 + (r + r * r * exp_rest(r))) * scale
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

/// `x = m 2^e` for a positive normal number, with m between the roots of 1/2 and 2: e, and ln m in two parts.
#[inline(always)]
fn parts(x: f32) -> (f32, f32, f32) {
    let bits = x.to_bits() as i32;
    let e = bits.wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32) >> 23;
    let f = f32::from_bits(bits.wrapping_sub(e << 23) as u32) - 1.0;
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
    let square = f * f;
    (e as f32, f, f * square * q - 0.5 * square)
}

/// Natural logarithm of a positive normal number, absolute error below 1e-7 (1 + |result|).
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let (e, f, rest) = parts(x);
    e * LN2_HIGH + (f + (rest + e * LN2_LOW))
}

/// A logarithm of any float from the one of positive normal numbers, whose value at 2^24 is `of_lift`: -inf at 0, NaN below it.
#[inline(always)]
fn of_any(x: f32, of_lift: f32, log: impl Fn(f32) -> f32) -> f32 {
    const LIFT: f32 = 16_777_216.0;
    let tiny = x < f32::MIN_POSITIVE;
    let lifted = if tiny { x * LIFT } else { x };
    let value = log(lifted) - if tiny { of_lift } else { 0.0 };
    let value = if x == f32::INFINITY { x } else { value };
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    if x >= 0.0 { value } else { f32::NAN }
}

/// The natural logarithm of any float, accurate as [`ln`].
#[inline(always)]
pub fn log(x: f32) -> f32 {
    of_any(x, 16.635_532, ln)
}

/// The logarithm to base 2 of a positive normal number.
#[inline(always)]
fn log2_of_normal(x: f32) -> f32 {
    let (e, f, rest) = parts(x);
    e + (f + rest) * LOG2_E
}

/// The logarithm to base 2 of any float, exact for powers of 2, else accurate as [`ln`].
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    of_any(x, 24.0, log2_of_normal)
}

/// `log(1 + x)`, relative error below 3e-7.
#[inline(always)]
pub fn log1p(x: f32) -> f32 {
    // What the rounding of the sum took from x is added to its logarithm.
    let sum = 1.0 + x;
    let lost = (x - (sum - 1.0)) / sum;
    let value = log(sum);
    (if value.is_finite() { value + lost } else { value }).copysign(x)
}

/// The integer in the low bits of a sum with [`ROUND`].
#[inline(always)]
fn integer(shifted: f32) -> i32 {
    (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32)
}

/// 2^n for `n` from -126 to 127.
#[inline(always)]
fn two_to(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// `2^x`, exact for integers, relative error below 1.5e-7 where the result is normal.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    // Comparisons written so that NaN passes.
    let x = if x > 129.0 { 129.0 } else { x };
    let x = if x < -151.0 { -151.0 } else { x };
    let shifted = x + ROUND;
    let (n, r) = (integer(shifted), (x - (shifted - ROUND)) * std::f32::consts::LN_2);
    // In two steps, since 2^n alone may be too large or too small for a float.
    let half = n >> 1;
    (1.0 + (r + r * r * exp_rest(r))) * two_to(half) * two_to(n - half)
}

/// `e^x - 1`, relative error below 3e-7.
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    let bounded = if x > 89.0 { 89.0 } else { x };
    let bounded = if bounded < -30.0 { -30.0 } else { bounded };
    let (shifted, r) = reduce(bounded);
    let n = integer(shifted);
    let half = n >> 1;
    let (first, second) = (two_to(half), two_to(n - half));
    // (e^r - 1) 2^n + (2^n - 1)
    let value = ((r + r * r * exp_rest(r)) * first + (first - two_to(half - n))) * second;
    value.copysign(x)
}

/// The logarithm to base 2 of a positive normal number, relative error below 1e-11: `2 artanh((m - 1) / (m + 1))` and e, for
/// `x = m 2^e`.
#[inline(always)]
fn log2_f64(x: f64) -> f64 {
    let bits = x.to_bits();
    let e =
        ((bits >> 32) as i32).wrapping_sub((std::f64::consts::FRAC_1_SQRT_2.to_bits() >> 32) as i32) >> 20;
    let m = f64::from_bits(bits.wrapping_sub((e as u64) << 52));
    let s = (m - 1.0) / (m + 1.0);
    let odd = [1.0, 1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0, 1.0 / 13.0];
    f64::from(e) + s * (2.0 * std::f64::consts::LOG2_E) * polynomial(s * s, odd)
}

/// `2^x` for `x` from -1000 to 1000, relative error below 1e-11; NaN stays NaN.
#[inline(always)]
fn exp2_f64(x: f64) -> f64 {
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let shifted = x + ROUND;
    let r = (x - (shifted - ROUND)) * std::f64::consts::LN_2;
    let inverse_factorials = [
        1.0,
        1.0,
        1.0 / 2.0,
        1.0 / 6.0,
        1.0 / 24.0,
        1.0 / 120.0,
        1.0 / 720.0,
        1.0 / 5_040.0,
        1.0 / 40_320.0,
        1.0 / 362_880.0,
    ];
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1f64.to_bits()));
    polynomial(r, inverse_factorials) * scale
}

/// `x^y` with the special cases of C, error below 0.501 units in the last place: in f64, where no f32 is subnormal.
#[inline(always)]
pub fn pow(x: f32, y: f32) -> f32 {
    let magnitude = x.abs();
    let log = log2_f64(f64::from(magnitude));
    let log = if magnitude == 0.0 { f64::NEG_INFINITY } else { log };
    let log = if magnitude == f32::INFINITY { f64::INFINITY } else { log };
    let power = f64::from(y) * log;
    // Comparisons written so that NaN passes.
    let power = if power > 1000.0 { 1000.0 } else { power };
    let power = if power < -1000.0 { -1000.0 } else { power };
    let value = exp2_f64(power) as f32;
    // Floats from 2^24 on are even.
    let (whole, large) = (y as i32, y.abs() >= 16_777_216.0);
    let is_whole = large || whole as f32 == y;
    let is_odd = !large && is_whole && whole & 1 == 1;
    let is_negative = x.is_sign_negative();
    let undefined =
        x.is_nan() || (is_negative && !is_whole && magnitude != 0.0 && magnitude != f32::INFINITY);
    let value = if undefined { f32::NAN } else { value };
    let value = if magnitude == 1.0 && y.abs() == f32::INFINITY { 1.0 } else { value };
    let value = if is_negative && is_odd { -value } else { value };
    if y == 0.0 || x == 1.0 { 1.0 } else { value }
}

/// The angles below this magnitude, in radians, for which [`short_sin`] and [`short_cos`] know enough digits of pi.
pub const SHORT_ANGLE: f32 = 4e8;

/// Sine and cosine of a short angle less the nearest multiple of a quarter turn, and which multiple.
#[inline(always)]
fn quarter_turn(x: f32) -> (f64, f64, u64) {
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // A quarter turn in two parts; the first has so few bits that its product with the multiple is exact.
    const HIGH: f64 = f64::from_bits(0x3ff9_21fb_5000_0000);
    const LOW: f64 = 1.589_325_477_352_819_6e-8;
    let x = f64::from(x);
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * HIGH) - n * LOW;
    let square = r * r;
    let sin = [
        -0.166_666_666_416_265_23,
        0.008_333_329_385_889_463,
        -0.000_198_393_348_360_966_3,
        2.718_311_493_989_822e-6,
    ];
    let cos = [
        -0.499_999_997_251_031,
        0.041_666_623_323_739_06,
        -0.001_388_676_377_460_993,
        2.439_044_879_627_741e-5,
    ];
    let (sin, cos) = (polynomial(square, sin), polynomial(square, cos));
    (r * (1.0 + square * sin), 1.0 + square * cos, shifted.to_bits())
}

/// `x`, or `-x` where the lowest bit is set.
#[inline(always)]
fn negated_if(bit: u64, x: f64) -> f32 {
    f64::from_bits(x.to_bits() ^ (bit << 63)) as f32
}

/// The sine of a short angle, error below 0.51 units in the last place.
#[inline(always)]
pub fn short_sin(x: f32) -> f32 {
    let (sin, cos, quarter) = quarter_turn(x);
    negated_if(quarter >> 1, if quarter & 1 == 0 { sin } else { cos })
}

/// The cosine of a short angle, error below 0.51 units in the last place.
#[inline(always)]
pub fn short_cos(x: f32) -> f32 {
    let (sin, cos, quarter) = quarter_turn(x);
    negated_if(quarter.wrapping_add(1) >> 1, if quarter & 1 == 0 { cos } else { sin })
}

/// The sine of any angle: that of [`short_sin`], or as accurate.
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    if x.abs() < SHORT_ANGLE { short_sin(x) } else { libm::sinf(x) }
}

/// The cosine of any angle: that of [`short_cos`], or as accurate.
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    if x.abs() < SHORT_ANGLE { short_cos(x) } else { libm::cosf(x) }
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
