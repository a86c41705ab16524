//! The accuracy of the functions that kernels are made of.

use oarlock_kernels::difference::largest_difference_by;
use oarlock_kernels::math::{erf, exp, ln, normal_cdf, sigmoid, sin_cos_turn, tanh};

fn worst(range: (f32, f32), ours: impl Fn(f32) -> f32, reference: impl Fn(f64) -> f64) -> f64 {
    let n = 200_000;
    let x: Vec<f32> = (0..=n).map(|i| range.0 + (range.1 - range.0) * (i as f32 / n as f32)).collect();
    let got: Vec<f32> = x.iter().map(|x| ours(*x)).collect();
    let want: Vec<f64> = x.iter().map(|x| reference(f64::from(*x))).collect();
    let relative = |got: f64, want: f64| if want == 0.0 { got.abs() } else { ((got - want) / want).abs() };
    largest_difference_by(&got, &want, relative).unwrap()
}

#[test]
fn exp_is_accurate_and_saturates() {
    assert!(worst((-87.3, 88.3), exp, f64::exp) < 1.2e-7);
    assert!(worst((-1.0, 1.0), exp, f64::exp) < 1.2e-7);
    assert_eq!(exp(0.0), 1.0);
    for (low, high) in [(f32::NEG_INFINITY, f32::INFINITY), (-1e30, 1e30), (-88.0, 88.4), (-1000.0, 1000.0)] {
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
