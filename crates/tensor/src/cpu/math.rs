//! The transcendental functions of the kernels: branch-free polynomials in f32 that vectorise on every path and
//! give the same bits on each.

use std::f32::consts::LOG2_E;

/// Added to and subtracted from a float below 2^22, it rounds to the nearest integer, which then stands in the low
/// bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// `a0 + x (a1 + x (a2 + …))`.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut value = coefficients[N - 1];
    for i in (0..N - 1).rev() {
        value = value * x + coefficients[i];
    }
    value
}

/// `2^n` for `n` in -126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// `e^x`, relative error below 1.2e-7 wherever the result is normal; underflow is gradual, NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Beyond these the result is 0 or infinity; comparisons written so that NaN passes.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = x * LOG2_E + ROUND;
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let n_float = shifted - ROUND;
    // ln 2 in two parts: the first has so few bits that its product with n is exact.
    let r = (x - n_float * 0.693_359_4) - n_float * -2.121_944_4e-4;
    let q = polynomial(r, [0.5, 0.166_665_18, 0.041_666_203, 0.008_368_954, 0.001_395_06]);
    let e = 1.0 + (r + r * r * q);
    // Two factors, since n reaches from -150 to 128; for NaN n is arbitrary and the shift drops what does not fit.
    let half = n >> 1;
    e * power_of_two(half) * power_of_two(n.wrapping_sub(half))
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
        assert!(worst((-87.3, 88.72), exp, f64::exp) < 1.2e-7);
        assert!(worst((-1.0, 1.0), exp, f64::exp) < 1.2e-7);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!((exp(f32::NEG_INFINITY), exp(f32::INFINITY)), (0.0, f32::INFINITY));
        assert_eq!((exp(-1000.0), exp(88.8)), (0.0, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan());
        assert!((f64::from(exp(-95.0)) - (-95f64).exp()).abs() < 2e-45, "denormal results");
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
}
