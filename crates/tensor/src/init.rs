//! How parameters start: each element is a function of the seed, the parameter and its place.

use crate::cpu::random::{self, Stream};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::shape::Shape;

/// How a parameter starts, element by element addressed by (seed, parameter, element). The names are those of
/// `torch.nn.init`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// One number everywhere.
    Constant {
        /// The number.
        value: f32,
    },
    /// Normal with mean 0.
    Normal {
        /// The standard deviation.
        std: f32,
    },
    /// Normal with mean 0, without what lies outside of `low..=high`: `trunc_normal_`, where these are -2 and 2 by
    /// default.
    TruncNormal {
        /// The standard deviation of the whole distribution.
        std: f32,
        /// The least number.
        low: f32,
        /// The largest number.
        high: f32,
    },
    /// Uniform in [-bound, bound).
    Uniform {
        /// The bound.
        bound: f32,
    },
    /// Uniform in [low, high).
    UniformBetween {
        /// The least number.
        low: f32,
        /// Above all numbers.
        high: f32,
    },
    /// Uniform up to `gain · √(6 / (inputs + outputs))` (Glorot and Bengio 2010).
    XavierUniform {
        /// A factor for what follows, see [`Init::gain`].
        gain: f32,
    },
    /// Normal with standard deviation `gain · √(2 / (inputs + outputs))` (Glorot and Bengio 2010).
    XavierNormal {
        /// A factor for what follows, see [`Init::gain`].
        gain: f32,
    },
    /// Uniform up to `gain · √(3 / fan)` (He et al. 2015).
    KaimingUniform {
        /// Whether the size of activations or that of gradients is kept.
        fan: Fan,
        /// A factor for what follows, see [`Init::gain`].
        gain: f32,
    },
    /// Normal with standard deviation `gain / √fan` (He et al. 2015).
    KaimingNormal {
        /// Whether the size of activations or that of gradients is kept.
        fan: Fan,
        /// A factor for what follows, see [`Init::gain`].
        gain: f32,
    },
}

/// What the numbers of [`Init::KaimingNormal`] are scaled by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// The inputs of an output: activations keep their size.
    In,
    /// The outputs of an input: gradients keep their size.
    Out,
}

/// What follows a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nonlinearity {
    /// Nothing, or a convolution.
    Linear,
    /// The logistic function.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// The larger of x and 0.
    Relu,
    /// A line with this slope below 0.
    LeakyRelu {
        /// The slope.
        negative_slope: f32,
    },
    /// The scaled exponential linear unit.
    Selu,
}

impl Init {
    /// The gain of a layer before a nonlinearity: `calculate_gain`.
    pub fn gain(nonlinearity: Nonlinearity) -> f32 {
        match nonlinearity {
            Nonlinearity::Linear | Nonlinearity::Sigmoid => 1.0,
            Nonlinearity::Tanh => 5.0 / 3.0,
            Nonlinearity::Relu => 2f32.sqrt(),
            Nonlinearity::LeakyRelu { negative_slope } => (2.0 / (1.0 + negative_slope.powi(2))).sqrt(),
            Nonlinearity::Selu => 0.75,
        }
    }

    /// Fills host memory with elements `first..` of a parameter of this shape, whose random numbers are those of
    /// `stream`.
    ///
    /// # Errors
    /// Fans of a parameter of fewer than two dims, or a normal distribution without anything between its bounds.
    pub fn fill(
        self,
        shape: &Shape,
        device: &Device,
        stream: Stream,
        first: u64,
        out: &mut [f32],
    ) -> Result<()> {
        let cpu = device.host();
        let mut uniform = |low, high| random::fill_uniform(cpu, stream, first, low, high, out);
        match self {
            Init::Zeros => out.fill(0.0),
            Init::Ones => out.fill(1.0),
            Init::Constant { value } => out.fill(value),
            Init::Uniform { bound } => uniform(-bound, bound),
            Init::UniformBetween { low, high } => uniform(low, high),
            Init::XavierUniform { gain } => {
                let (fan_in, fan_out) = fans(shape)?;
                let bound = gain * (6.0 / (fan_in + fan_out)).sqrt();
                uniform(-bound, bound);
            }
            Init::KaimingUniform { fan, gain } => {
                let bound = gain * (3.0 / fan_of(shape, fan)?).sqrt();
                uniform(-bound, bound);
            }
            Init::Normal { std } => random::fill_normal(cpu, stream, first, 0.0, std, out),
            Init::XavierNormal { gain } => {
                let (fan_in, fan_out) = fans(shape)?;
                let std = gain * (2.0 / (fan_in + fan_out)).sqrt();
                random::fill_normal(cpu, stream, first, 0.0, std, out);
            }
            Init::KaimingNormal { fan, gain } => {
                let std = gain / fan_of(shape, fan)?.sqrt();
                random::fill_normal(cpu, stream, first, 0.0, std, out);
            }
            Init::TruncNormal { std, low, high } => {
                if !(std > 0.0 && low < high) {
                    return Err(Error::Usage(format!(
                        "trunc_normal: expected a positive standard deviation and bounds in order, got {std} and {low} to {high}"
                    )));
                }
                uniform(0.0, 1.0);
                truncate(f64::from(std), f64::from(low), f64::from(high), out);
            }
        }
        Ok(())
    }
}

/// Inputs of an output and outputs of an input, of a weight `[outputs, inputs, kernel ..]`.
fn fans(shape: &Shape) -> Result<(f32, f32)> {
    let &[outputs, inputs, ref kernel @ ..] = shape.sizes() else {
        return Err(Error::Shape {
            op: "an initial distribution with fans",
            expected: "a parameter of at least two dims".to_owned(),
            got: format!("{shape:?}"),
        });
    };
    let kernel: usize = kernel.iter().product();
    Ok(((inputs * kernel).max(1) as f32, (outputs * kernel).max(1) as f32))
}

fn fan_of(shape: &Shape, fan: Fan) -> Result<f32> {
    let (fan_in, fan_out) = fans(shape)?;
    Ok(if fan == Fan::In { fan_in } else { fan_out })
}

/// Turns numbers uniform in `0..1` into normal ones between two bounds, by the inverse of the distribution function.
fn truncate(std: f64, low: f64, high: f64, out: &mut [f32]) {
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
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
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
        let q = (-2.0 * p.ln()).sqrt();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::par::Par;

    fn filled(init: Init, sizes: &[usize]) -> Vec<f32> {
        let (shape, device) = (Shape::new(sizes).unwrap(), Device::cpu(Isa::detect(), Par::solo()));
        let stream = Stream { seed: 1, stream: 2 };
        let mut whole = vec![0.0; shape.n_elems()];
        init.fill(&shape, &device, stream, 0, &mut whole).unwrap();
        let (head, tail) = whole.split_at(whole.len() / 3);
        let mut part = vec![0.0; tail.len()];
        init.fill(&shape, &device, stream, head.len() as u64, &mut part).unwrap();
        assert_eq!(part, tail, "{init:?}: a part is that of the whole");
        whole
    }

    fn std_of(x: &[f32]) -> f32 {
        let mean = x.iter().sum::<f32>() / x.len() as f32;
        (x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / x.len() as f32).sqrt()
    }

    #[test]
    fn fans_and_gains_are_torchs() {
        // [outputs, inputs, 3, 3]: 90 inputs of an output, 180 outputs of an input.
        let sizes = [20, 10, 3, 3];
        let gain = Init::gain(Nonlinearity::Relu);
        for (init, std) in [
            (Init::XavierUniform { gain: 2.0 }, 2.0 * (2.0f32 / 270.0).sqrt()),
            (Init::XavierNormal { gain: 1.0 }, (2.0f32 / 270.0).sqrt()),
            (Init::KaimingUniform { fan: Fan::In, gain }, (2.0f32 / 90.0).sqrt()),
            (Init::KaimingNormal { fan: Fan::Out, gain }, (2.0f32 / 180.0).sqrt()),
            (Init::UniformBetween { low: 1.0, high: 3.0 }, 1.0 / 3f32.sqrt()),
        ] {
            let got = std_of(&filled(init, &sizes));
            assert!((got / std - 1.0).abs() < 0.05, "{init:?}: {got} {std}");
        }
        let largest = filled(Init::XavierUniform { gain: 1.0 }, &sizes).into_iter().fold(0f32, f32::max);
        assert!(largest <= (6.0f32 / 270.0).sqrt() && largest > 0.98 * (6.0f32 / 270.0).sqrt());
        assert_eq!(filled(Init::Constant { value: 0.25 }, &[4]), [0.25; 4]);
        let leaky = Init::gain(Nonlinearity::LeakyRelu { negative_slope: 5f32.sqrt() });
        assert!((leaky - (1f32 / 3.0).sqrt()).abs() < 1e-7);
    }

    #[test]
    fn a_truncated_normal_ends_at_its_bounds_and_is_normal_inside() {
        let x = filled(Init::TruncNormal { std: 0.02, low: -0.02, high: 0.04 }, &[200, 100]);
        assert!(x.iter().all(|x| (-0.02..=0.04).contains(x)));
        // Of a normal distribution, between -1 and 2: mean 0.2296, standard deviation 0.7208.
        let mean = x.iter().sum::<f32>() / x.len() as f32;
        assert!((mean / 0.02 - 0.2296).abs() < 0.02, "{mean}");
        assert!((std_of(&x) / 0.02 - 0.7208).abs() < 0.02);
        let wide = filled(Init::TruncNormal { std: 1.0, low: -10.0, high: 10.0 }, &[200, 100]);
        assert!((std_of(&wide) - 1.0).abs() < 0.02);
    }

    #[test]
    fn impossible_distributions_are_errors() {
        let (shape, device) = (Shape::new(&[3]).unwrap(), Device::cpu(Isa::detect(), Par::solo()));
        let fill = |init: Init| {
            init.fill(&shape, &device, Stream { seed: 1, stream: 2 }, 0, &mut [0.0; 3])
                .unwrap_err()
                .to_string()
        };
        assert!(fill(Init::XavierNormal { gain: 1.0 }).contains("at least two dims, got [3]"));
        assert!(fill(Init::TruncNormal { std: 1.0, low: 1.0, high: 0.0 }).contains("bounds in order"));
    }
}
