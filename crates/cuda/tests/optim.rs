//! The steps of optimizers against f64.

use half::{bf16, f16};
use oarlock_cuda::{Pieces, geometry};

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, values};

/// Weights, two states, the second not negative, and gradients.
fn slices(n: usize) -> [Vec<f32>; 4] {
    let [w, m, mut v, g] = [1, 2, 3, 4].map(|seed| values::<f32>(seed, n));
    v.iter_mut().for_each(|v| *v = v.abs());
    [w, m, v, g]
}

/// Compares the slices behind a step with what `rule` makes of each element; the working copy is the rounded weight.
fn compare<T: Float>(got: &[Vec<f32>; 3], working: &[T], rule: impl Fn(&mut [f64; 3], f64)) {
    let [w, m, v, g] = slices(working.len());
    let mut want = [vec![], vec![], vec![]];
    for (i, g) in g.iter().enumerate() {
        let mut element = [w[i], m[i], v[i]].map(f64::from);
        rule(&mut element, f64::from(*g));
        want.iter_mut().zip(element).for_each(|(want, x)| want.push(x));
    }
    for (what, (got, want)) in ["weights", "first", "second"].iter().zip(got.iter().zip(&want)) {
        assert_close(what, got, want, 2e-6);
    }
    assert_eq!(working, got[0].iter().map(|w| T::of(f64::from(*w))).collect::<Vec<_>>());
}

/// Three pieces of so many elements in all: weights, two states, gradients and the working copy, of which some are absent.
fn pieces<T: Float>(
    n: usize,
    of_f32: [Option<&Buffer<f32>>; 4],
    working: Option<&Buffer<T>>,
) -> Pieces<'static> {
    let mut pieces = Pieces::new();
    for part in [0..n / 3, n / 3..n / 2, n / 2..n] {
        let [w, m, v, g] =
            of_f32.map(|buffer| buffer.map_or(0, |buffer| buffer.address() + 4 * part.start as u64));
        let size = T::ELEMENT.size();
        let working = working.map_or(0, |buffer| buffer.address() + (size * part.start) as u64);
        assert!(part.is_empty() || pieces.push_addresses(part.len(), [w, m, v, g, working]));
    }
    pieces
}

fn adam<T: Float>(library: &Library, decoupled: bool, n: usize) {
    let [w, m, v, g] = slices(n);
    let (lr, decay, beta1, beta2, eps, scale, step) = (0.01, 0.1, 0.9, 0.95, 1e-6, 0.5, 3);
    let (correction1, correction2) = (1.0 - f64::powi(beta1, step), 1.0 - f64::powi(beta2, step));
    let (got, working) = in_every_order(library, |gpu| {
        let (w, m, v, g) = (gpu.buffer(&w), gpu.buffer(&m), gpu.buffer(&v), gpu.buffer(&g));
        let working = gpu.fresh::<T>(n);
        let all = pieces(n, [Some(&w), Some(&m), Some(&v), Some(&g)], Some(&working));
        let args = args![
            all,
            u32::from(decoupled),
            scale as f32,
            decay as f32,
            (1.0 - lr * decay) as f32,
            (1.0 - beta1) as f32,
            beta2 as f32,
            (1.0 - beta2) as f32,
            correction2.sqrt() as f32,
            eps as f32,
            (lr / correction1) as f32
        ];
        gpu.run("adam", &[T::ELEMENT], geometry::pieces(&all), args);
        ([w.read(), m.read(), v.read()], working.read())
    });
    compare(&got, &working, |[w, m, v], g| {
        let mut g = g * scale;
        let kept = if decoupled { *w * (1.0 - lr * decay) } else { *w };
        g += if decoupled { 0.0 } else { decay * *w };
        *m = beta1 * *m + (1.0 - beta1) * g;
        *v = beta2 * *v + (1.0 - beta2) * g * g;
        *w = kept - lr * (*m / correction1) / ((*v / correction2).sqrt() + eps);
    });
}

fn sgd<T: Float>(library: &Library, nesterov: bool, n: usize) {
    let [w, m, v, g] = slices(n);
    let (lr, decay, momentum, scale) = (0.05, 0.1, 0.9, 2.0);
    let (got, working, plain) = in_every_order(library, |gpu| {
        let (weights, m, g) = (gpu.buffer(&w), gpu.buffer(&m), gpu.buffer(&g));
        let (working, none) = (gpu.fresh::<T>(n), None::<&Buffer<T>>);
        let [s, d, lr, mu, nest] =
            [scale, decay, lr, momentum, f64::from(u8::from(nesterov))].map(|x| x as f32);
        let run = |weights, buffer: Option<&Buffer<f32>>, working: Option<&Buffer<T>>| {
            let all = pieces(n, [weights, buffer, None, Some(&g)], working);
            let args = args![all, s, d, lr, mu, mu, 1f32, nest as u32];
            gpu.run("sgd", &[T::ELEMENT], geometry::pieces(&all), args);
        };
        let alone = gpu.buffer(&w);
        run(Some(&weights), Some(&m), Some(&working));
        run(Some(&alone), None, none);
        ([weights.read(), m.read(), v.clone()], working.read(), alone.read())
    });
    compare(&got, &working, |[w, m, _], g| {
        let g = g * scale + decay * *w;
        *m = *m * momentum + g;
        *w -= lr * if nesterov { g + momentum * *m } else { *m };
    });
    let want: Vec<f64> =
        f64s(&w).iter().zip(f64s(&g)).map(|(w, g)| w - lr * (g * scale + decay * w)).collect();
    assert_close("without momentum", &plain, &want, 1e-6);
}

fn lion<T: Float>(library: &Library, n: usize) {
    let [w, m, v, g] = slices(n);
    let (lr, decay, beta1, beta2, scale) = (0.01, 0.1, 0.9, 0.99, 0.5);
    let (got, working) = in_every_order(library, |gpu| {
        let (w, m, g, working) = (gpu.buffer(&w), gpu.buffer(&m), gpu.buffer(&g), gpu.fresh::<T>(n));
        let [s, keep, lr, b1, r1, b2, r2] =
            [scale, 1.0 - lr * decay, lr, beta1, 1.0 - beta1, beta2, 1.0 - beta2].map(|x| x as f32);
        let all = pieces(n, [Some(&w), Some(&m), None, Some(&g)], Some(&working));
        let args = args![all, s, keep, lr, b1, r1, b2, r2];
        gpu.run("lion", &[T::ELEMENT], geometry::pieces(&all), args);
        ([w.read(), m.read(), v.clone()], working.read())
    });
    compare(&got, &working, |[w, m, _], g| {
        let g = g * scale;
        let blend = beta1 * *m + (1.0 - beta1) * g;
        *w = *w * (1.0 - lr * decay) - if blend == 0.0 { 0.0 } else { lr * blend.signum() };
        *m = beta2 * *m + (1.0 - beta2) * g;
    });
}

fn adagrad<T: Float>(library: &Library, start: f64, n: usize) {
    let [w, _, v, g] = slices(n);
    let (lr, decay, eps, scale) = (0.05, 0.1, 1e-3, 0.5);
    let (got, working) = in_every_order(library, |gpu| {
        let (w, sum, g, working) = (gpu.buffer(&w), gpu.buffer(&v), gpu.buffer(&g), gpu.fresh::<T>(n));
        let [scale, decay, lr, start, eps] = [scale, decay, lr, start, eps].map(|x| x as f32);
        let all = pieces(n, [Some(&w), Some(&sum), None, Some(&g)], Some(&working));
        let args = args![all, scale, decay, lr, start, eps];
        gpu.run("adagrad", &[T::ELEMENT], geometry::pieces(&all), args);
        ([w.read(), slices(n)[1].clone(), sum.read()], working.read())
    });
    compare(&got, &working, |[w, _, sum], g| {
        let g = g * scale + decay * *w;
        *sum = (*sum + start) + g * g;
        *w -= lr * g / (sum.sqrt() + eps);
    });
}

/// The elementwise parts of Muon.
fn muon<T: Float>(library: &Library, nesterov: bool, n: usize) {
    let [w, m, _, g] = slices(n);
    let (scale, momentum, keep, step) = (0.5, 0.95, 0.99, -0.02);
    let squares = [m.iter().map(|m| f64::from(*m).powi(2)).sum::<f64>(), 1e-30];
    let (got, divided, working) = in_every_order(library, |gpu| {
        let (direction, buffer, grad) = (gpu.fresh::<f32>(n), gpu.buffer(&m), gpu.buffer(&g));
        let [s, mu, take] = [scale, momentum, 1.0 - momentum].map(|x| x as f32);
        let args = args![direction, buffer, grad, s, mu, take, u32::from(nesterov), n as u64];
        gpu.run("muon_momentum", &[], geometry::elements(n), args);
        let divided = squares.map(|squares| {
            let (x, squares) = (gpu.buffer(&m), gpu.buffer(&[squares]));
            gpu.run("muon_divide", &[], geometry::elements(n), args![x, squares, 1e-7f32, n as u64]);
            x.read()
        });
        let (x, working) = (gpu.buffer(&w), gpu.fresh::<T>(n));
        let args = args![x, grad, working, keep as f32, step as f32, n as u64];
        gpu.run("muon_blend", &[T::ELEMENT], geometry::elements(n), args);
        ([x.read(), buffer.read(), direction.read()], divided, working.read())
    });
    for (divided, norm) in divided.iter().zip([squares[0].sqrt(), f64::from(1e-7f32)]) {
        assert_close("divided", divided, &f64s(&m).iter().map(|m| m / norm).collect::<Vec<_>>(), 2e-7);
    }
    compare(&got, &working, |[w, m, direction], g| {
        *w = *w * keep + step * g;
        let g = g * scale;
        *m = momentum * *m + (1.0 - momentum) * g;
        *direction = if nesterov { (1.0 - momentum) * g + momentum * *m } else { *m };
    });
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    adam::<f32>(library, true, 77);
    // A piece of two tiles.
    adam::<f32>(library, true, 9000);
    sgd::<f32>(library, false, 77);
    lion::<f32>(library, 77);
    adagrad::<f32>(library, 0.1, 77);
    muon::<f32>(library, true, 77);
    adam::<bf16>(library, true, 2056);
    adam::<f16>(library, false, 9);
    sgd::<bf16>(library, true, 64);
    sgd::<f16>(library, false, 9);
    lion::<bf16>(library, 64);
    lion::<f16>(library, 1);
    adagrad::<bf16>(library, 0.0, 64);
    adagrad::<f16>(library, 0.0, 9);
    muon::<bf16>(library, false, 64);
    muon::<f16>(library, true, 9);
}

#[test]
fn steps_match_the_reference() {
    on_emulator(check);
}
