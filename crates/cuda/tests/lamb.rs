//! Steps of Lamb against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, block_squares, f64s, values};

struct Lamb {
    eps_inside: bool,
    /// The bounds of the ratio of norms.
    bounds: [f64; 2],
    /// What the weights are multiplied by: with 0 they have no norm.
    size: f32,
}

fn step<T: Float>(library: &Library, lamb: &Lamb, n: usize) {
    let [mut w, m, mut v, g] = [1, 2, 3, 4].map(|seed| values::<f32>(seed, n));
    w.iter_mut().for_each(|w| *w *= lamb.size);
    v.iter_mut().for_each(|v| *v = v.abs());
    let (scale, decay, beta1, beta2, eps, rate) = (0.5, 0.1, 0.9, 0.95, 0.01, 0.03);
    let [low, high] = lamb.bounds;
    let (got, length, working) = in_every_order(library, |gpu| {
        let weights = &w;
        let (w, m, v, g) = (gpu.buffer(&w), gpu.buffer(&m), gpu.buffer(&v), gpu.buffer(&g));
        let n_blocks = n.div_ceil(geometry::NORM_BLOCK);
        let (of_weights, of_direction) = (gpu.buffer(&block_squares(weights)), gpu.fresh::<f64>(n_blocks));
        let (blocks, one) = (geometry::squared_norm(n), geometry::one_block());
        let [s, d, b1, r1, b2, r2, eps, rate, low, high] =
            [scale, decay, beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps, rate, low, high].map(|x| x as f32);
        let (n, inside) = (n as u64, u32::from(lamb.eps_inside));
        let args = args![w, m, v, g, of_direction, s, d, b1, r1, b2, r2, eps, inside, n];
        gpu.run("lamb_moments", &[], blocks, args);
        let (length, working) = (gpu.fresh::<f32>(1), gpu.fresh::<T>(n as usize));
        let args = args![of_weights, of_direction, n_blocks as u64, rate, low, high, length];
        gpu.run("lamb_length", &[], one, args);
        let args = args![w, m, v, working, length, d, eps, inside, n];
        gpu.run("lamb_apply", &[T::ELEMENT], geometry::elements(n as usize), args);
        ([w.read(), m.read(), v.read()], length.read()[0], working.read())
    });
    let [mut w, mut m, mut v, g] = [w, m, v, g].map(|x| f64s(&x));
    let mut u = vec![0.0; n];
    for i in 0..n {
        let g = scale * g[i];
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        let root = if lamb.eps_inside { (v[i] + eps).sqrt() } else { v[i].sqrt() + eps };
        u[i] = m[i] / root + decay * w[i];
    }
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let ratio = if norm(&w) == 0.0 { 1.0 } else { (norm(&w) / norm(&u)).min(high).max(low) };
    assert_close("length", &[length], &[rate * ratio], 1e-7);
    w.iter_mut().zip(&u).for_each(|(w, u)| *w -= rate * ratio * u);
    for (what, (got, want)) in ["weights", "first", "second"].iter().zip(got.iter().zip([w, m, v])) {
        assert_close(what, got, &want, 2e-6);
    }
    assert_eq!(working, got[0].iter().map(|w| T::of(f64::from(*w))).collect::<Vec<_>>());
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    step::<f32>(library, &Lamb { eps_inside: false, bounds: [0.01, 10.0], size: 1.0 }, 77);
    step::<f32>(library, &Lamb { eps_inside: true, bounds: [0.01, 0.5], size: 1.0 }, 9);
    step::<bf16>(library, &Lamb { eps_inside: false, bounds: [3.0, 10.0], size: 1.0 }, 4102);
    step::<f16>(library, &Lamb { eps_inside: true, bounds: [0.01, 10.0], size: 0.0 }, 64);
}

#[test]
fn steps_match_the_reference() {
    on_emulator(check);
}
