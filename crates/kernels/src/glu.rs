//! The activation functions, and gated linear units with them, forward and backward.

use crate::Cpu;
use crate::dtype::Float;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::math::{exp, normal_cdf, sigmoid, tanh};
use crate::pieces::{TASK_ELEMS, cut, elementwise, for_pieces};

/// An elementwise activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x sigmoid(x)`, also called swish.
    Silu,
    /// GELU: `x Phi(x)` with the normal distribution function.
    Gelu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
}

impl Activation {
    /// The function at `x`.
    #[inline(always)]
    pub(super) fn value(self, x: f32) -> f32 {
        match self {
            Activation::Silu => x * sigmoid(x),
            Activation::Gelu => x * normal_cdf(x),
            Activation::GeluTanh => x * gelu_tanh_gate(x),
            // Not `max`: NaN must stay NaN.
            Activation::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Activation::Tanh => tanh(x),
            Activation::Sigmoid => sigmoid(x),
        }
    }

    /// The derivative at `x`.
    #[inline(always)]
    pub(super) fn slope(self, x: f32) -> f32 {
        match self {
            Activation::Silu => {
                let s = sigmoid(x);
                s * (1.0 + x * (1.0 - s))
            }
            Activation::Gelu => {
                let density = 0.398_942_3 * exp(-0.5 * x * x);
                normal_cdf(x) + x * density
            }
            Activation::GeluTanh => {
                let (s, inner) = (gelu_tanh_gate(x), GELU_TANH.1 * (1.0 + 3.0 * GELU_TANH.0 * x * x));
                s + x * s * (1.0 - s) * inner
            }
            Activation::Relu => {
                if x > 0.0 {
                    1.0
                } else {
                    0.0
                }
            }
            Activation::Tanh => {
                let t = tanh(x);
                1.0 - t * t
            }
            Activation::Sigmoid => {
                let s = sigmoid(x);
                s * (1.0 - s)
            }
        }
    }

    /// `dy` times the function at `x`.
    #[inline(always)]
    fn times_value(self, dy: f32, x: f32) -> f32 {
        match self {
            Activation::Silu => dy * x * sigmoid(x),
            other => dy * other.value(x),
        }
    }
}

/// The cubic coefficient of the tanh form of GELU, and `2 sqrt(2 / pi)`: as `(1 + tanh u) / 2` is `sigmoid(2 u)`, the
/// form is `x sigmoid(2 u)`, which takes one exponential and no choice between two ranges.
const GELU_TANH: (f32, f32) = (0.044_715, 1.595_769_2);

/// The sigmoid by which the tanh form of GELU multiplies.
#[inline(always)]
fn gelu_tanh_gate(x: f32) -> f32 {
    sigmoid(GELU_TANH.1 * (x + GELU_TANH.0 * x * x * x))
}

/// Runs a body once per activation with `$a` a constant, so that each gets a loop of its own.
macro_rules! per_activation {
    ($act:expr, $a:ident => $body:expr) => {
        per_activation!($act, $a => $body, Silu Gelu GeluTanh Relu Tanh Sigmoid)
    };
    ($act:expr, $a:ident => $body:expr, $($name:ident)+) => {
        match $act {
            $(Activation::$name => {
                let $a = Activation::$name;
                $body
            })+
        }
    };
}
pub(super) use per_activation;

elementwise! {
    /// `y = act(gate) * up`.
    pub fn gated_forward[T: Float](act: Activation)(gate: &[T], up: &[T]) -> (y: &mut [T]) {
        per_activation!(act, act => {
            for ((y, g), u) in y.iter_mut().zip(gate).zip(up) {
                *y = T::from_f32(act.value(g.to_f32()) * u.to_f32());
            }
        });
    }
}

instances! {
    /// Gradients of [`gated_forward`]; both outputs are overwritten.
    pub fn gated_backward[T: Float](
        cpu: &Cpu,
        act: Activation,
        gate: &[T],
        up: &[T],
        dy: &[T],
        d_gate: &mut [T],
        d_up: &mut [T],
    ) {
        let n = dy.len();
        assert!([gate.len(), up.len(), d_gate.len(), d_up.len()] == [n; 4], "gated_backward: lengths");
        let outputs = (cut(d_gate, TASK_ELEMS), cut(d_up, TASK_ELEMS));
        for_pieces(&cpu.par, n.div_ceil(TASK_ELEMS), outputs, |i, (d_gate, d_up)| {
            let from = i * TASK_ELEMS;
            gated_backward_task(cpu.isa, act, &gate[from..], &up[from..], &dy[from..], d_gate, d_up);
        });
    }
}

multiversion! {
    fn gated_backward_task[T: Float](
        act: Activation, gate: &[T], up: &[T], dy: &[T], d_gate: &mut [T], d_up: &mut [T],
    ) {
        per_activation!(act, act => {
            for ((((g, u), dy), d_gate), d_up) in gate.iter().zip(up).zip(dy).zip(d_gate).zip(d_up) {
                let (g, u, dy) = (g.to_f32(), u.to_f32(), dy.to_f32());
                *d_gate = T::from_f32(dy * u * act.slope(g));
                *d_up = T::from_f32(act.times_value(dy, g));
            }
        });
    }
}
