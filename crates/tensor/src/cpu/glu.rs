//! SwiGLU and the activation functions, forward and backward.

use super::isa::multiversion;
use super::math::{exp, normal_cdf, sigmoid, tanh};
use super::pieces::{TASK_ELEMS, cut, for_pieces};
use super::{Cpu, Store};
use crate::dtype::Float;

/// An elementwise activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x sigmoid(x)`.
    Silu,
    /// `x Phi(x)` with the normal distribution function.
    GeluErf,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
}

/// `y = silu(gate) * up`.
pub fn swiglu_forward<T: Float>(cpu: &Cpu, gate: &[T], up: &[T], y: &mut [T]) {
    assert!(gate.len() == y.len() && up.len() == y.len(), "swiglu_forward: lengths");
    cpu.par.chunks_mut(y, TASK_ELEMS, |i, y| {
        let from = i * TASK_ELEMS;
        swiglu_forward_task(cpu.isa, &gate[from..], &up[from..], y);
    });
}

multiversion! {
    fn swiglu_forward_task[T: Float](gate: &[T], up: &[T], y: &mut [T]) {
        for ((y, g), u) in y.iter_mut().zip(gate).zip(up) {
            let g = g.to_f32();
            *y = T::from_f32(g * sigmoid(g) * u.to_f32());
        }
    }
}

/// Gradients of [`swiglu_forward`]; both outputs are overwritten.
pub fn swiglu_backward<T: Float>(
    cpu: &Cpu,
    gate: &[T],
    up: &[T],
    dy: &[T],
    d_gate: &mut [T],
    d_up: &mut [T],
) {
    let n = dy.len();
    assert!([gate.len(), up.len(), d_gate.len(), d_up.len()] == [n; 4], "swiglu_backward: lengths");
    let outputs = (cut(d_gate, TASK_ELEMS), cut(d_up, TASK_ELEMS));
    for_pieces(&cpu.par, n.div_ceil(TASK_ELEMS), outputs, |i, (d_gate, d_up)| {
        let from = i * TASK_ELEMS;
        swiglu_backward_task(cpu.isa, &gate[from..], &up[from..], &dy[from..], d_gate, d_up);
    });
}

multiversion! {
    fn swiglu_backward_task[T: Float](gate: &[T], up: &[T], dy: &[T], d_gate: &mut [T], d_up: &mut [T]) {
        for ((((g, u), dy), d_gate), d_up) in gate.iter().zip(up).zip(dy).zip(d_gate).zip(d_up) {
            let (g, u, dy) = (g.to_f32(), u.to_f32(), dy.to_f32());
            let s = sigmoid(g);
            *d_gate = T::from_f32(dy * u * silu_slope(g, s));
            *d_up = T::from_f32(dy * g * s);
        }
    }
}

/// The derivative of silu, given `s = sigmoid(x)`.
#[inline(always)]
fn silu_slope(x: f32, s: f32) -> f32 {
    s * (1.0 + x * (1.0 - s))
}

/// The cubic coefficient of the tanh form of GELU, and `2 sqrt(2 / pi)`: as `(1 + tanh u) / 2` is `sigmoid(2 u)`, the
/// form is `x sigmoid(2 u)`, which takes one exponential and no choice between two ranges.
const GELU_TANH: (f32, f32) = (0.044_715, 1.595_769_1);

/// The sigmoid by which the tanh form of GELU multiplies.
#[inline(always)]
fn gelu_tanh_gate(x: f32) -> f32 {
    sigmoid(GELU_TANH.1 * (x + GELU_TANH.0 * x * x * x))
}

/// `y = act(x)`.
pub fn activation_forward<T: Float>(cpu: &Cpu, act: Activation, x: &[T], y: &mut [T]) {
    assert_eq!(x.len(), y.len(), "activation_forward: lengths");
    cpu.par.chunks_mut(y, TASK_ELEMS, |i, y| activation_forward_task(cpu.isa, act, &x[i * TASK_ELEMS..], y));
}

#[inline(always)]
fn map<T: Float>(x: &[T], y: &mut [T], f: impl Fn(f32) -> f32) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = T::from_f32(f(x.to_f32()));
    }
}

multiversion! {
    fn activation_forward_task[T: Float](act: Activation, x: &[T], y: &mut [T]) {
        match act {
            Activation::Silu => map(x, y, |x| x * sigmoid(x)),
            Activation::GeluErf => map(x, y, |x| x * normal_cdf(x)),
            Activation::GeluTanh => map(x, y, |x| x * gelu_tanh_gate(x)),
            // Not `max`: NaN must stay NaN.
            Activation::Relu => map(x, y, |x| if x < 0.0 { 0.0 } else { x }),
            Activation::Tanh => map(x, y, tanh),
            Activation::Sigmoid => map(x, y, sigmoid),
        }
    }
}

/// `dx = dy * act'(x)`, overwritten or added to.
pub fn activation_backward<T: Float>(
    cpu: &Cpu,
    act: Activation,
    x: &[T],
    dy: &[T],
    (dx, store): (&mut [T], Store),
) {
    assert!(x.len() == dx.len() && dy.len() == dx.len(), "activation_backward: lengths");
    cpu.par.chunks_mut(dx, TASK_ELEMS, |i, dx| {
        let from = i * TASK_ELEMS;
        activation_backward_task(cpu.isa, act, &x[from..], &dy[from..], dx, store);
    });
}

#[inline(always)]
fn chain<T: Float>(x: &[T], dy: &[T], dx: &mut [T], store: Store, slope: impl Fn(f32) -> f32) {
    for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
        store.put(dx, dy.to_f32() * slope(x.to_f32()));
    }
}

multiversion! {
    fn activation_backward_task[T: Float](act: Activation, x: &[T], dy: &[T], dx: &mut [T], store: Store) {
        match act {
            Activation::Silu => chain(x, dy, dx, store, |x| silu_slope(x, sigmoid(x))),
            Activation::GeluErf => chain(x, dy, dx, store, |x| {
                let density = 0.398_942_3 * exp(-0.5 * x * x);
                normal_cdf(x) + x * density
            }),
            Activation::GeluTanh => chain(x, dy, dx, store, |x| {
                let (s, inner) = (gelu_tanh_gate(x), GELU_TANH.1 * (1.0 + 3.0 * GELU_TANH.0 * x * x));
                s + x * s * (1.0 - s) * inner
            }),
            Activation::Relu => chain(x, dy, dx, store, |x| if x > 0.0 { 1.0 } else { 0.0 }),
            Activation::Tanh => chain(x, dy, dx, store, |x| {
                let t = tanh(x);
                1.0 - t * t
            }),
            Activation::Sigmoid => chain(x, dy, dx, store, |x| {
                let s = sigmoid(x);
                s * (1.0 - s)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, f64s, same_everywhere, values};
    use crate::dtype::bf16;

    fn zip_map(x: &[f64], y: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
        x.iter().zip(y).map(|(x, y)| f(*x, *y)).collect()
    }

    fn sigmoid64(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    fn swiglu<T: Float>(n: usize, tolerance: f64) {
        let (g, u, dy) = (values::<T>(1, n), values::<T>(2, n), values::<T>(3, n));
        let (y, dg, du) = same_everywhere(|cpu| {
            let (mut y, mut dg, mut du) = (g.clone(), g.clone(), g.clone());
            swiglu_forward(cpu, &g, &u, &mut y);
            swiglu_backward(cpu, &g, &u, &dy, &mut dg, &mut du);
            (y, dg, du)
        });
        let (g, u, dy) = (f64s(&g), f64s(&u), f64s(&dy));
        let silu = |x: f64| x * sigmoid64(x);
        let slope = |x: f64| sigmoid64(x) * (1.0 + x * (1.0 - sigmoid64(x)));
        assert_close(&y, &zip_map(&g, &u, |g, u| silu(g) * u), tolerance);
        assert_close(&dg, &zip_map(&zip_map(&g, &u, |g, u| slope(g) * u), &dy, |s, dy| s * dy), tolerance);
        assert_close(&du, &zip_map(&g, &dy, |g, dy| silu(g) * dy), tolerance);
    }

    #[test]
    fn swiglu_matches_the_reference() {
        for n in [0, 1, 77, TASK_ELEMS + 5] {
            swiglu::<f32>(n, 1e-6);
            swiglu::<bf16>(n, 0.005);
        }
    }

    fn cdf64(x: f64) -> f64 {
        // Simpson's rule on the density; good to 1e-12 for the range of the test.
        let n = 400;
        let h = x / f64::from(n);
        let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let sum: f64 = (0..=n)
            .map(|i| {
                let weight = if i == 0 || i == n {
                    1.0
                } else if i % 2 == 1 {
                    4.0
                } else {
                    2.0
                };
                weight * density(h * f64::from(i))
            })
            .sum();
        0.5 + sum * h / 3.0
    }

    fn reference(act: Activation, x: f64) -> f64 {
        match act {
            Activation::Silu => x * sigmoid64(x),
            Activation::GeluErf => x * cdf64(x),
            Activation::GeluTanh => {
                let c = (2.0 / std::f64::consts::PI).sqrt();
                0.5 * x * (1.0 + (c * (x + 0.044_715 * x.powi(3))).tanh())
            }
            Activation::Relu => x.max(0.0),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => sigmoid64(x),
        }
    }

    #[test]
    fn activations_and_their_slopes_match_the_reference() {
        use Activation::*;
        let n = 1003;
        for act in [Silu, GeluErf, GeluTanh, Relu, Tanh, Sigmoid] {
            let x: Vec<f32> = values::<f32>(1, n).iter().map(|x| x * 3.0).collect();
            let dy = values::<f32>(2, n);
            let (y, dx, added) = same_everywhere(|cpu| {
                let (mut y, mut dx, mut added) = (x.clone(), x.clone(), x.clone());
                activation_forward(cpu, act, &x, &mut y);
                activation_backward(cpu, act, &x, &dy, (&mut dx, Store::Overwrite));
                activation_backward(cpu, act, &x, &dy, (&mut added, Store::Add));
                (y, dx, added)
            });
            let (x, dy) = (f64s(&x), f64s(&dy));
            assert_close(&y, &x.iter().map(|&x| reference(act, x)).collect::<Vec<_>>(), 1e-6);
            let h = 1e-5;
            let slope = |x| (reference(act, x + h) - reference(act, x - h)) / (2.0 * h);
            let want = zip_map(&x, &dy, |x, dy| slope(x) * dy);
            assert_close(&dx, &want, 2e-6);
            assert_close(&added, &zip_map(&want, &x, |d, x| d + x), 2e-6);
        }
    }
}
