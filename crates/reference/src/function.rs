//! Functions of one element and of two, with their slopes.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use crate::formula::Array;

/// The error function, by its series and its continued fraction, to about 1e-15.
pub fn erf(x: f64) -> f64 {
    let square = x * x;
    if x.abs() < 3.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..100 {
            term *= -square / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * FRAC_2_SQRT_PI;
    }
    let fraction = (1..60).rev().fold(x.abs(), |below, k| x.abs() + f64::from(k) / 2.0 / below);
    (1.0 - (-square).exp() / (fraction * PI.sqrt())).copysign(x)
}

/// The distribution function of the normal distribution.
pub fn normal_cdf(x: f64) -> f64 {
    0.5 * (1.0 + erf(x * FRAC_1_SQRT_2))
}

/// The logistic function.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A derivative by central differences, of a function that is smooth around `x`.
pub fn slope(f: impl Fn(f64) -> f64, x: f64) -> f64 {
    let h = 1e-5;
    (f(x + h) - f(x - h)) / (2.0 * h)
}

/// An activation of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Activation {
    Silu,
    Gelu,
    GeluTanh,
    Relu,
    Tanh,
    Sigmoid,
}

impl Activation {
    /// All of them.
    pub const ALL: [Activation; 6] = {
        use Activation::*;
        [Silu, Gelu, GeluTanh, Relu, Tanh, Sigmoid]
    };

    /// The function.
    pub fn value(self, x: f64) -> f64 {
        match self {
            Activation::Silu => x * sigmoid(x),
            Activation::Gelu => x * normal_cdf(x),
            Activation::GeluTanh => 0.5 * x * (1.0 + inner(x).tanh()),
            Activation::Relu => x.max(0.0),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => sigmoid(x),
        }
    }

    /// Its derivative, 0 at a kink.
    pub fn slope(self, x: f64) -> f64 {
        match self {
            Activation::Silu => sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x))),
            Activation::Gelu => normal_cdf(x) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt(),
            Activation::GeluTanh => {
                let t = inner(x).tanh();
                0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * (2.0 / PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x)
            }
            Activation::Relu => f64::from(u8::from(x > 0.0)),
            Activation::Tanh => 1.0 - x.tanh().powi(2),
            Activation::Sigmoid => sigmoid(x) * (1.0 - sigmoid(x)),
        }
    }

    /// Of each element.
    pub fn of(self, x: &Array) -> Array {
        x.map(move |x| self.value(x), move |x| self.slope(x))
    }

    /// A gated unit: of the gate, times the other.
    pub fn gated(self, gate: &Array, up: &Array) -> Array {
        self.of(gate).mul(up)
    }
}

/// What the approximation of gelu takes the hyperbolic tangent of.
fn inner(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))
}

/// The larger of two; equal ones share the gradient.
pub fn maximum(x: &Array, y: &Array) -> Array {
    fn slopes(x: f64, y: f64) -> (f64, f64) {
        let of_x = if x == y { 0.5 } else { f64::from(u8::from(x > y)) };
        (of_x, 1.0 - of_x)
    }
    x.zip(y, f64::max, slopes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_is_that_of_tables() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
            (3.5, 0.999_999_256_901_627_7),
        ] {
            assert!((erf(x) - want).abs() < 1e-13 && (erf(-x) + want).abs() < 1e-13, "{x}: {}", erf(x));
        }
    }

    #[test]
    fn slopes_of_activations_are_those_of_differences() {
        for act in Activation::ALL {
            for x in [-4.0, -0.7, 0.1, 2.5] {
                let want = slope(|x| act.value(x), x);
                assert!((act.slope(x) - want).abs() < 1e-7, "{act:?} at {x}: {}, not {want}", act.slope(x));
            }
        }
    }
}
