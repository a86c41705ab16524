//! Steps of Lamb against f64.

use half::{bf16, f16};
use oarlock_cuda::{Pieces, geometry};
use oarlock_reference::optimizer::{Args, Case, Lamb, Rule};

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close};

/// A step on two parameters, which have other norms, with these bounds of the ratio of
/// norms. Weights are multiplied by `size`: with 0 they have no norm.
fn step<T: Float>(
    library: &Library,
    eps_inside_sqrt: bool,
    [min_coeff, max_coeff]: [f64; 2],
    size: f32,
    lens: [usize; 2],
) {
    let cases = lens.map(|n| {
        let mut c = Case::new(&[n], [n, n, 0], true);
        c.weights.iter_mut().for_each(|w| *w *= size);
        c
    });
    let (scale, decay, beta1, beta2, eps, rate) = (0.5, 0.1, 0.9, 0.95, 0.01, 0.03);
    let results = in_every_order(library, |gpu| {
        let [s, d, b1, r1, b2, r2, eps, rate, low, high] =
            [scale, decay, beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps, rate, min_coeff, max_coeff]
                .map(|x| x as f32);
        let memory = cases.each_ref().map(|c| {
            let [w, m, v, g] = [&c.weights, &c.states[0], &c.states[1], &c.grad].map(|x| gpu.buffer(x));
            let n_tiles = c.weights.len().div_ceil(Pieces::TILE);
            (w, m, v, g, gpu.fresh::<T>(c.weights.len()), gpu.fresh::<f64>(1 + 2 * n_tiles))
        });
        let (mut moments, mut lengths, mut apply) = (Pieces::new(), Pieces::new(), Pieces::new());
        for ((w, m, v, g, working, scratch), n) in memory.iter().zip(lens) {
            let [w, m, v, g, scratch] =
                [w.address(), m.address(), v.address(), g.address(), scratch.address()];
            assert!(moments.push_addresses(n, [w, m, v, g, scratch]));
            assert!(lengths.push_words(1, n, [0, 0, 0, 0, scratch]));
            assert!(apply.push_addresses(n, [w, m, v, working.address(), scratch]));
        }
        let inside = u32::from(eps_inside_sqrt);
        let args = args![moments, s, d, b1, r1, b2, r2, eps, inside];
        gpu.run("lamb_moments", &[], geometry::pieces(&moments), args);
        gpu.run("lamb_length", &[], geometry::pieces(&lengths), args![lengths, rate, low, high]);
        gpu.run("lamb_apply", &[T::ELEMENT], geometry::pieces(&apply), args![apply, d, eps, inside]);
        memory.map(|(w, m, v, _, working, scratch)| {
            let length = f32::from_bits(scratch.read()[0].to_bits() as u32);
            (w.read(), m.read(), v.read(), working.read(), length)
        })
    });
    let bias_correction = false;
    let lamb = Lamb { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff };
    let args = Args { step: 2, lr: rate, weight_decay: decay, grad_scale: scale };
    for (c, (w, m, v, working, length)) in cases.iter().zip(&results) {
        let want = c.check((&Rule::Lamb(lamb), &args), w, [m, v, &[]], working, 2e-6);
        assert_close("length", &[*length], &[want], 1e-7);
    }
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    step::<f32>(library, false, [0.01, 10.0], 1.0, [77, 30]);
    step::<f32>(library, true, [0.01, 0.5], 1.0, [9, 1]);
    step::<bf16>(library, false, [3.0, 10.0], 1.0, [4102, 8200]);
    step::<f16>(library, true, [0.01, 10.0], 0.0, [64, 5]);
}

#[test]
fn steps_match_the_reference() {
    on_emulator(check);
}
