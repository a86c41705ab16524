//! Activations and gated units against f64 references.

use oarlock_kernels::glu::{Activation, gated_backward, gated_forward};
use oarlock_kernels::math::sigmoid;
use oarlock_kernels::pieces::TASK_ELEMS;
use oarlock_kernels::unary::{self, Unary};
use oarlock_kernels::{Store, bf16};
use oarlock_reference::function::Activation as Reference;
use oarlock_reference::gated::{Case, SIZES};

use crate::everywhere::{Element, assert_close, f64s, same_everywhere, scaled, sum, values};

const ALL: [(Activation, Reference); 6] = [
    (Activation::Silu, Reference::Silu),
    (Activation::Gelu, Reference::Gelu),
    (Activation::GeluTanh, Reference::GeluTanh),
    (Activation::Relu, Reference::Relu),
    (Activation::Tanh, Reference::Tanh),
    (Activation::Sigmoid, Reference::Sigmoid),
];

fn gated<T: Element>((act, reference): (Activation, Reference), n: usize) {
    let c = Case::<T>::new(reference, n);
    let (y, dg, du) = same_everywhere(|cpu| {
        let (mut y, mut dg, mut du) = (c.gate.clone(), c.gate.clone(), c.gate.clone());
        gated_forward(cpu, act, &c.gate, &c.up, &mut y);
        gated_backward(cpu, act, &c.gate, &c.up, &c.dy, &mut dg, &mut du);
        (y, dg, du)
    });
    c.check([&y, &dg, &du]);
}

#[test]
fn gated_units_match_the_reference() {
    for act in ALL {
        for n in SIZES.into_iter().chain([0]) {
            gated::<f32>(act, n);
            gated::<bf16>(act, n);
        }
    }
    gated::<f32>(ALL[0], TASK_ELEMS + 5);
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

#[test]
fn activations_and_their_slopes_match_the_reference() {
    for (act, reference) in ALL {
        let (x, dy) = (scaled::<f32>(1, 1003, 3.0, 0.0), values::<f32>(2, 1003));
        let (y, dx, added) = same_everywhere(|cpu| {
            let (mut y, mut dx, mut added) = (x.clone(), x.clone(), x.clone());
            unary::forward(cpu, Unary::Activation(act), &x, &mut y);
            unary::backward(cpu, Unary::Activation(act), Store::Overwrite, &x, &dy, &mut dx);
            unary::backward(cpu, Unary::Activation(act), Store::Add, &x, &dy, &mut added);
            (y, dx, added)
        });
        let (x, dy) = (f64s(&x), f64s(&dy));
        let want: Vec<f64> = x.iter().map(|x| reference.value(*x)).collect();
        assert_close(&format!("{act:?}"), &y, &want, 1e-6);
        let want: Vec<f64> = x.iter().zip(&dy).map(|(x, dy)| reference.slope(*x) * dy).collect();
        assert_close(&format!("the slope of {act:?}"), &dx, &want, 2e-6);
        assert_close(&format!("the slope of {act:?}, added"), &added, &sum(&want, &x), 2e-6);
    }
}
