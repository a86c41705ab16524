//! The accuracy of the functions that kernels are made of.

use oarlock_kernels::difference::largest_difference_by;
use oarlock_kernels::math::{
    SHORT_ANGLE, cos, erf, exp, exp2, expm1, ln, log, log1p, log2, normal_cdf, pow, short_cos, short_sin,
    sigmoid, sin, sin_cos_turn, tanh,
};

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

/// Floats of every magnitude and sign.
fn any() -> impl Iterator<Item = f32> {
    (0..=u32::MAX).step_by(9973).map(f32::from_bits)
}

/// The largest error over some floats in units of the last place of what is wanted, where that is normal; below it the error in
/// units of the least normal number. Infinities and NaN must be where they are wanted.
#[track_caller]
fn worst_ulps(of: impl Iterator<Item = f32>, ours: impl Fn(f32) -> f32, want: impl Fn(f64) -> f64) -> f64 {
    let mut worst = 0f64;
    for x in of {
        let (got, want) = (ours(x), want(f64::from(x)));
        if want.is_nan() || !(want as f32).is_finite() {
            assert!(
                got == want as f32 || (got.is_nan() && want.is_nan()),
                "{x:e}: {got:e} instead of {want:e}"
            );
            continue;
        }
        let size = (want as f32).abs().max(f32::MIN_POSITIVE);
        let ulp = f64::from(f32::from_bits(size.to_bits() + 1)) - f64::from(size);
        let error = (f64::from(got) - want).abs() / ulp;
        assert!(!error.is_nan(), "{x:e}: {got:e} instead of {want:e}");
        worst = worst.max(error);
    }
    worst
}

#[test]
fn powers_and_logarithms_are_accurate_everywhere() {
    for (name, got) in [
        ("exp2", worst_ulps(any(), exp2, f64::exp2)),
        ("expm1", worst_ulps(any(), expm1, f64::exp_m1)),
        ("log", worst_ulps(any(), log, f64::ln)),
        ("log2", worst_ulps(any(), log2, f64::log2)),
        ("log1p", worst_ulps(any(), log1p, f64::ln_1p)),
    ] {
        assert!(got < 3.0, "{name}: {got}");
    }
    for n in -149..128i32 {
        let power = 2f64.powi(n) as f32;
        assert_eq!((exp2(n as f32), log2(power)), (power, n as f32));
    }
    for x in [0.0f32, -0.0, 1e-45, -1e-45, 1e-30, -1e-30] {
        assert_eq!((expm1(x).to_bits(), log1p(x).to_bits()), (x.to_bits(), x.to_bits()));
    }
}

#[test]
fn angles_of_any_size_are_accurate() {
    let finite = || any().filter(|x| x.is_finite());
    assert!(worst_ulps(finite(), sin, f64::sin) < 0.51);
    assert!(worst_ulps(finite(), cos, f64::cos) < 0.51);
    let short = || (-400_000..400_000).map(|i| i as f32 * 0.037);
    assert!(worst_ulps(short(), short_sin, f64::sin) < 0.51);
    assert!(worst_ulps(short(), short_cos, f64::cos) < 0.51);
    let last = SHORT_ANGLE.next_down();
    assert_eq!(
        (short_sin(last), short_cos(last)),
        (f64::from(last).sin() as f32, f64::from(last).cos() as f32)
    );
    assert!(
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].iter().all(|x| sin(*x).is_nan() && cos(*x).is_nan())
    );
    assert_eq!(sin(-0.0).to_bits(), (-0f32).to_bits());
}

#[test]
fn powers_are_those_of_c() {
    for y in [-50.0f32, -3.0, -1.0, -0.5, 1e-3, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 7.3, 50.0] {
        let got = worst_ulps(any(), |x| pow(x, y), |x| x.powf(f64::from(y)));
        assert!(got < 0.51, "{y}: {got}");
    }
    let special =
        [0.0, 1.0, 0.5, 2.0, 3.0, 0.7, 1e-45, 1e38, 8_388_609.0, 16_777_215.0, 16_777_216.0, 33_554_432.0];
    let special = special.into_iter().chain([f32::INFINITY]).flat_map(|x| [x, -x]).chain([f32::NAN]);
    let special: Vec<f32> = special.collect();
    for &x in &special {
        for &y in &special {
            let (got, want) = (pow(x, y), x.powf(y));
            // Beside the special cases the last place may differ.
            let near = got == want || (got - want).abs() <= 1e-7 * want.abs();
            let same = near && got.is_sign_negative() == want.is_sign_negative();
            assert!(same || (got.is_nan() && want.is_nan()), "{x:e} ^ {y:e}: {got:e} instead of {want:e}");
        }
    }
}
