//! Activations and gated units against f64 references.

use oarlock_kernels::glu::{Activation, gated_backward, gated_forward};
use oarlock_kernels::math::sigmoid;
use oarlock_kernels::pieces::TASK_ELEMS;
use oarlock_kernels::unary::{self, Unary};
use oarlock_kernels::{Float, Store, bf16};

use crate::everywhere::{assert_close, f64s, same_everywhere, values};

const ALL: [Activation; 6] = {
    use Activation::*;
    [Silu, Gelu, GeluTanh, Relu, Tanh, Sigmoid]
};

fn zip_map(x: &[f64], y: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| f(*x, *y)).collect()
}

fn sigmoid64(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gated<T: Float>(act: Activation, n: usize, tolerance: f64) {
    let (g, u, dy) = (values::<T>(1, n), values::<T>(2, n), values::<T>(3, n));
    let (y, dg, du) = same_everywhere(|cpu| {
        let (mut y, mut dg, mut du) = (g.clone(), g.clone(), g.clone());
        gated_forward(cpu, act, &g, &u, &mut y);
        gated_backward(cpu, act, &g, &u, &dy, &mut dg, &mut du);
        (y, dg, du)
    });
    let (g, u, dy) = (f64s(&g), f64s(&u), f64s(&dy));
    let slope = zip_map(&g, &u, |g, u| slope(act, g) * u);
    assert_close(&y, &zip_map(&g, &u, |g, u| reference(act, g) * u), tolerance);
    assert_close(&dg, &zip_map(&slope, &dy, |s, dy| s * dy), tolerance);
    assert_close(&du, &zip_map(&g, &dy, |g, dy| reference(act, g) * dy), tolerance);
}

#[test]
fn gated_units_match_the_reference() {
    for act in ALL {
        for n in [0, 1, 77] {
            gated::<f32>(act, n, 2e-6);
            gated::<bf16>(act, n, 0.005);
        }
    }
    gated::<f32>(Activation::Silu, TASK_ELEMS + 5, 1e-6);
}

/// SwiGLU is what most models train with: its roundings stay as they were.
#[test]
fn the_bits_of_swiglu() {
    let (g, u, dy) = (values::<f32>(1, 99), values::<f32>(2, 99), values::<f32>(3, 99));
    let (mut y, mut dg, mut du) = (g.clone(), g.clone(), g.clone());
    let cpu = &crate::everywhere::cpus()[0];
    gated_forward(cpu, Activation::Silu, &g, &u, &mut y);
    gated_backward(cpu, Activation::Silu, &g, &u, &dy, &mut dg, &mut du);
    for i in 0..99 {
        let (g, u, dy, s) = (g[i], u[i], dy[i], sigmoid(g[i]));
        let want = [g * s * u, dy * u * (s * (1.0 + g * (1.0 - s))), dy * g * s];
        assert_eq!([y[i], dg[i], du[i]].map(f32::to_bits), want.map(f32::to_bits));
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
        Activation::Gelu => x * cdf64(x),
        Activation::GeluTanh => {
            let c = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * x * (1.0 + (c * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid64(x),
    }
}

fn slope(act: Activation, x: f64) -> f64 {
    let h = 1e-5;
    (reference(act, x + h) - reference(act, x - h)) / (2.0 * h)
}

#[test]
fn activations_and_their_slopes_match_the_reference() {
    let n = 1003;
    for act in ALL {
        let x: Vec<f32> = values::<f32>(1, n).iter().map(|x| x * 3.0).collect();
        let dy = values::<f32>(2, n);
        let (y, dx, added) = same_everywhere(|cpu| {
            let (mut y, mut dx, mut added) = (x.clone(), x.clone(), x.clone());
            unary::forward(cpu, Unary::Activation(act), &x, &mut y);
            unary::backward(cpu, Unary::Activation(act), Store::Overwrite, &x, &dy, &mut dx);
            unary::backward(cpu, Unary::Activation(act), Store::Add, &x, &dy, &mut added);
            (y, dx, added)
        });
        let (x, dy) = (f64s(&x), f64s(&dy));
        assert_close(&y, &x.iter().map(|&x| reference(act, x)).collect::<Vec<_>>(), 1e-6);
        let want = zip_map(&x, &dy, |x, dy| slope(act, x) * dy);
        assert_close(&dx, &want, 2e-6);
        assert_close(&added, &zip_map(&want, &x, |d, x| d + x), 2e-6);
    }
}
