//! The normal distribution between bounds, by the inverse of its distribution function.

/// Turns numbers uniform in `0..1` into normal ones between two bounds, by the inverse of the distribution function.
pub(super) fn truncate(std: f64, low: f64, high: f64, out: &mut [f32]) {
    let (from, to) = (normal_cdf(low / std), normal_cdf(high / std));
    for x in out {
        let p = from + (to - from) * f64::from(*x);
        *x = (std * normal_quantile(p)).clamp(low, high) as f32;
    }
}

/// The share of a normal distribution below x, within 1e-7 (Abramowitz and Stegun 1964, 26.2.17).
fn normal_cdf(x: f64) -> f64 {
    const B: [f64; 5] = [0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429];
    let t = 1.0 / (1.0 + 0.2316419 * x.abs());
    let density = libm::exp(-0.5 * x * x) / (2.0 * std::f64::consts::PI).sqrt();
    let above = density * t * B.iter().rev().fold(0.0, |sum, b| sum * t + b);
    if x < 0.0 { above } else { 1.0 - above }
}

/// Where a normal distribution has the share `p` below, within a relative error of 1.2e-9 (Acklam 2003).
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.38357751867269e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 6] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 5] =
        [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1.0];
    const TAIL: f64 = 0.02425;
    let poly = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    let tail = |p: f64| {
        let q = (-2.0 * libm::log(p)).sqrt();
        poly(&C, q) / poly(&D, q)
    };
    if p <= 0.0 {
        f64::NEG_INFINITY
    } else if p >= 1.0 {
        f64::INFINITY
    } else if p < TAIL {
        tail(p)
    } else if p > 1.0 - TAIL {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        q * poly(&A, q * q) / poly(&B, q * q)
    }
}
