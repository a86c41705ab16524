//! Steps of Lamb against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;
use oarlock_reference::optimizer::{Args, Case, Lamb, Rule};
use oarlock_reference::reduce::block_squares;

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s};

/// A step with these bounds of the ratio of norms. Weights are multiplied by `size`: with 0 they have no norm.
fn step<T: Float>(
    library: &Library,
    eps_inside_sqrt: bool,
    [min_coeff, max_coeff]: [f64; 2],
    size: f32,
    n: usize,
) {
    let mut c = Case::new(&[n], [n, n, 0], true);
    c.weights.iter_mut().for_each(|w| *w *= size);
    let (scale, decay, beta1, beta2, eps, rate) = (0.5, 0.1, 0.9, 0.95, 0.01, 0.03);
    let n_blocks = n.div_ceil(geometry::NORM_BLOCK);
    let (w, m, v, length, working) = in_every_order(library, |gpu| {
        let (w, m, v) = (gpu.buffer(&c.weights), gpu.buffer(&c.states[0]), gpu.buffer(&c.states[1]));
        let (g, of_direction) = (gpu.buffer(&c.grad), gpu.fresh::<f64>(n_blocks));
        let of_weights = gpu.buffer(&block_squares(&f64s(&c.weights), geometry::NORM_BLOCK));
        let (blocks, one) = (geometry::squared_norm(n), geometry::one_block());
        let [s, d, b1, r1, b2, r2, eps, rate, low, high] =
            [scale, decay, beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps, rate, min_coeff, max_coeff]
                .map(|x| x as f32);
        let (count, inside) = (n as u64, u32::from(eps_inside_sqrt));
        let args = args![w, m, v, g, of_direction, s, d, b1, r1, b2, r2, eps, inside, count];
        gpu.run("lamb_moments", &[], blocks, args);
        let (length, working) = (gpu.fresh::<f32>(1), gpu.fresh::<T>(n));
        let args = args![of_weights, of_direction, n_blocks as u64, rate, low, high, length];
        gpu.run("lamb_length", &[], one, args);
        let args = args![w, m, v, working, length, d, eps, inside, count];
        gpu.run("lamb_apply", &[T::ELEMENT], geometry::elements(n), args);
        (w.read(), m.read(), v.read(), length.read(), working.read())
    });
    let bias_correction = false;
    let lamb = Lamb { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff };
    let args = Args { step: 2, lr: rate, weight_decay: decay, grad_scale: scale };
    let want = c.check((&Rule::Lamb(lamb), &args), &w, [&m, &v, &[]], &working, 2e-6);
    assert_close("length", &length, &[want], 1e-7);
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    step::<f32>(library, false, [0.01, 10.0], 1.0, 77);
    step::<f32>(library, true, [0.01, 0.5], 1.0, 9);
    step::<bf16>(library, false, [3.0, 10.0], 1.0, 4102);
    step::<f16>(library, true, [0.01, 10.0], 0.0, 64);
}

#[test]
fn steps_match_the_reference() {
    on_emulator(check);
}
