//! The bold line of a picture: what is left of values when their noise is taken out, without a lag behind them.

/// With fewer values every one of them can be seen.
pub const LEAST: usize = 20;

/// What a value this far away would weigh counts as nothing.
const NOTHING: f64 = 1e-4;

/// At each value that of the parabola which fits best around it. The weight of a neighbor falls with its distance by the
/// square of the factor of LLaMA-Factory's running mean, 1.8·(sigmoid(0.05·n) − 0.5), so that more values are smoothed more.
/// A running mean looks back only, and so stays above a curve that falls; this looks both ways, and a curve without noise stays
/// as it is.
pub fn smooth(values: &[f64]) -> Vec<f64> {
    let factor = (1.8 * (1.0 / (1.0 + libm::exp(-0.05 * values.len() as f64)) - 0.5)).powi(2);
    let reach = (libm::log(NOTHING) / libm::log(factor)).ceil().max(2.0) as usize;
    let weights: Vec<f64> = (0..=reach).map(|distance| factor.powi(distance as i32)).collect();
    (0..values.len())
        .map(|at| {
            let near = at.saturating_sub(reach)..values.len().min(at + reach + 1);
            // Distances as parts of the reach, and values from the middle one on, keep the sums exact.
            let points = near.map(|other| {
                let x = (other as f64 - at as f64) / reach as f64;
                (x, values[other] - values[at], weights[other.abs_diff(at)])
            });
            values[at] + parabola_at_zero(points).unwrap_or(0.0)
        })
        .collect()
}

/// The value at 0 of the parabola nearest to weighted points; `None` for points that determine none.
fn parabola_at_zero(points: impl Iterator<Item = (f64, f64, f64)>) -> Option<f64> {
    let (mut s, mut t) = ([0.0; 5], [0.0; 3]);
    for (x, y, weight) in points {
        let mut power = weight;
        for i in 0..5 {
            s[i] += power;
            if i < 3 {
                t[i] += power * y;
            }
            power *= x;
        }
    }
    // Cramer's rule for the first of the three normal equations.
    let det = |a: [f64; 3], b: [f64; 3], c: [f64; 3]| {
        a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0])
            + a[2] * (b[0] * c[1] - b[1] * c[0])
    };
    let below = det([s[0], s[1], s[2]], [s[1], s[2], s[3]], [s[2], s[3], s[4]]);
    let value = det([t[0], s[1], s[2]], [t[1], s[2], s[3]], [t[2], s[3], s[4]]) / below;
    (below > 0.0 && value.is_finite()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_without_noise_stays_as_it_is() {
        for n in [20, 50, 400] {
            let line: Vec<f64> = (0..n).map(|i| 7.0 - 0.01 * i as f64).collect();
            let bend: Vec<f64> = (0..n).map(|i| (i as f64 - 5.0).powi(2)).collect();
            for values in [line, bend] {
                for (smoothed, value) in smooth(&values).iter().zip(&values) {
                    assert!((smoothed - value).abs() < 1e-6 * (1.0 + value.abs()), "{smoothed} {value}");
                }
            }
        }
        // A loss that falls as that of a first training does, where a running mean says 4.85 for 3.5.
        let loss: Vec<f64> = (0..200).map(|i| 0.4 + 7.0 * (-(i as f64) / 12.0).exp()).collect();
        for (smoothed, value) in smooth(&loss).iter().zip(&loss) {
            assert!((smoothed - value).abs() < 0.12, "{smoothed} {value}");
        }
    }

    #[test]
    fn noise_is_taken_out() {
        let noise = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f64 / 16_777_216.0 - 0.5;
        let values: Vec<f64> = (1..=300).map(|i| 2.0 + noise(i)).collect();
        let spread = |values: &[f64]| values.iter().map(|y| (y - 2.0).powi(2)).sum::<f64>().sqrt();
        let smoothed = smooth(&values);
        assert!(spread(&smoothed) < 0.35 * spread(&values), "{} {}", spread(&smoothed), spread(&values));
    }

    #[test]
    fn odd_values_do_no_harm() {
        assert!(smooth(&[]).is_empty());
        assert_eq!(smooth(&[3.0]), [3.0]);
        assert_eq!(smooth(&[1.0, 2.0]), [1.0, 2.0]);
        assert!(smooth(&[1e300, -1e300, 1e300, 0.0]).iter().all(|y| y.is_finite()));
    }
}
