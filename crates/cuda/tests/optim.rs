//! The steps of optimizers against f64.

use half::{bf16, f16};
use oarlock_cuda::{Pieces, geometry};
use oarlock_reference::optimizer::{Args, Case, Rule};

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s};

/// A weight with two states.
fn case(n: usize) -> Case {
    Case::new(&[n], [n, n, 0], true)
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
    let c = case(n);
    let (lr, decay, beta1, beta2, eps, scale) = (0.01, 0.1, 0.9, 0.95, 1e-6, 0.5);
    let args = Args { step: 3, lr, weight_decay: decay, grad_scale: scale };
    let (correction1, correction2) = (1.0 - f64::powi(beta1, 3), 1.0 - f64::powi(beta2, 3));
    let (w, m, v, working) = in_every_order(library, |gpu| {
        let (w, m, v) = (gpu.buffer(&c.weights), gpu.buffer(&c.states[0]), gpu.buffer(&c.states[1]));
        let (g, working) = (gpu.buffer(&c.grad), gpu.fresh::<T>(n));
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
        (w.read(), m.read(), v.read(), working.read())
    });
    let rule = if decoupled { Rule::AdamW { beta1, beta2, eps } } else { Rule::Adam { beta1, beta2, eps } };
    c.check((&rule, &args), &w, [&m, &v, &[]], &working, 2e-6);
}

fn sgd<T: Float>(library: &Library, nesterov: bool, n: usize) {
    let c = Case::new(&[n], [n, 0, 0], true);
    let (lr, decay, momentum, scale) = (0.05, 0.1, 0.9, 2.0);
    let (w, m, working, plain) = in_every_order(library, |gpu| {
        let (weights, m, g) = (gpu.buffer(&c.weights), gpu.buffer(&c.states[0]), gpu.buffer(&c.grad));
        let working = [0; 2].map(|_| gpu.fresh::<T>(n));
        let [s, d, lr, mu] = [scale, decay, lr, momentum].map(|x| x as f32);
        let run = |weights, buffer: Option<&Buffer<f32>>, working: Option<&Buffer<T>>| {
            let all = pieces(n, [weights, buffer, None, Some(&g)], working);
            let args = args![all, s, d, lr, mu, mu, 1f32, u32::from(nesterov)];
            gpu.run("sgd", &[T::ELEMENT], geometry::pieces(&all), args);
        };
        let alone = gpu.buffer(&c.weights);
        run(Some(&weights), Some(&m), Some(&working[0]));
        run(Some(&alone), None, None);
        (weights.read(), m.read(), working[0].read(), alone.read())
    });
    let args = Args { step: 2, lr, weight_decay: decay, grad_scale: scale };
    let rule = |momentum| Rule::Sgd { momentum, dampening: 0.0, nesterov };
    c.check((&rule(momentum), &args), &w, [&m, &[], &[]], &working, 2e-6);
    Case::new(&[n], [0; 3], true).check((&rule(0.0), &args), &plain, [&[]; 3], &plain, 1e-6);
}

fn lion<T: Float>(library: &Library, n: usize) {
    let c = Case::new(&[n], [n, 0, 0], true);
    let (lr, decay, beta1, beta2, scale) = (0.01, 0.1, 0.9, 0.99, 0.5);
    let (w, m, working) = in_every_order(library, |gpu| {
        let (w, m, g) = (gpu.buffer(&c.weights), gpu.buffer(&c.states[0]), gpu.buffer(&c.grad));
        let working = gpu.fresh::<T>(n);
        let [s, keep, lr, b1, r1, b2, r2] =
            [scale, 1.0 - lr * decay, lr, beta1, 1.0 - beta1, beta2, 1.0 - beta2].map(|x| x as f32);
        let all = pieces(n, [Some(&w), Some(&m), None, Some(&g)], Some(&working));
        gpu.run("lion", &[T::ELEMENT], geometry::pieces(&all), args![all, s, keep, lr, b1, r1, b2, r2]);
        (w.read(), m.read(), working.read())
    });
    let args = Args { step: 2, lr, weight_decay: decay, grad_scale: scale };
    c.check((&Rule::Lion { beta1, beta2 }, &args), &w, [&m, &[], &[]], &working, 2e-6);
}

fn adagrad<T: Float>(library: &Library, start: f64, n: usize) {
    let c = Case::new(&[n], [n, 0, 0], false);
    let (lr, decay, eps, scale) = (0.05, 0.1, 1e-3, 0.5);
    let (w, sum, working) = in_every_order(library, |gpu| {
        let (w, sum, g) = (gpu.buffer(&c.weights), gpu.buffer(&c.states[0]), gpu.buffer(&c.grad));
        let working = gpu.fresh::<T>(n);
        let [scale, decay, lr, start, eps] = [scale, decay, lr, start, eps].map(|x| x as f32);
        let all = pieces(n, [Some(&w), Some(&sum), None, Some(&g)], Some(&working));
        let args = args![all, scale, decay, lr, start, eps];
        gpu.run("adagrad", &[T::ELEMENT], geometry::pieces(&all), args);
        (w.read(), sum.read(), working.read())
    });
    let args = Args { step: 1, lr, weight_decay: decay, grad_scale: scale };
    let rule = Rule::Adagrad { lr_decay: 0.0, initial_accumulator_value: start, eps };
    c.check((&rule, &args), &w, [&sum, &[], &[]], &working, 2e-6);
}

/// The elementwise parts of Muon.
fn muon<T: Float>(library: &Library, nesterov: bool, n: usize) {
    let c = case(n);
    let (w, m, g) = (&c.weights, &c.states[0], &c.grad);
    let (scale, momentum, keep, step) = (0.5, 0.95, 0.99, -0.02);
    // Of one tile, of two, and one that is next to nothing.
    let squares = [vec![m.iter().map(|m| f64::from(*m).powi(2)).sum::<f64>()], vec![0.5, 0.25], vec![1e-30]];
    let len_of = |squares: &[f64]| Pieces::TILE * (squares.len() - 1) + n;
    let (x, buffer, direction, divided, working) = in_every_order(library, |gpu| {
        let (direction, buffer, grad) = (gpu.fresh::<f32>(n), gpu.buffer(m), gpu.buffer(g));
        let [s, mu, take] = [scale, momentum, 1.0 - momentum].map(|x| x as f32);
        let table = pieces::<f32>(n, [Some(&direction), Some(&buffer), Some(&grad), None], None);
        let args = args![table, s, mu, take, u32::from(nesterov)];
        gpu.run("muon_momentum", &[], geometry::pieces(&table), args);
        let memory = squares.each_ref().map(|squares| {
            let x: Vec<f32> = m.iter().cycle().take(len_of(squares)).copied().collect();
            (gpu.buffer(&x), gpu.buffer(squares), gpu.fresh::<f32>(1))
        });
        let (mut norms, mut divide) = (Pieces::new(), Pieces::new());
        for ((x, squares, norm), of) in memory.iter().zip(squares.each_ref().map(|squares| len_of(squares))) {
            assert!(norms.push_words(1, of, [squares.address(), norm.address(), 0, 0, 0]));
            assert!(divide.push_addresses(of, [x.address(), norm.address(), 0, 0, 0]));
        }
        gpu.run("muon_norm", &[], geometry::pieces(&norms), args![norms, 1e-7f32]);
        gpu.run("muon_divide", &[], geometry::pieces(&divide), args![divide]);
        let divided = memory.map(|(x, ..)| x.read());
        let (x, working) = (gpu.buffer(w), gpu.fresh::<T>(n));
        let table = pieces(n, [Some(&x), None, None, Some(&grad)], Some(&working));
        let args = args![table, keep as f32, step as f32];
        gpu.run("muon_blend", &[T::ELEMENT], geometry::pieces(&table), args);
        (x.read(), buffer.read(), direction.read(), divided, working.read())
    });
    let [w, m, g] = [w, m, g].map(|x| f64s(x));
    let each = |f: &dyn Fn(usize) -> f64| (0..n).map(f).collect::<Vec<_>>();
    let norms = [squares[0][0].sqrt(), 0.75f64.sqrt(), f64::from(1e-7f32)];
    for (divided, norm) in divided.iter().zip(norms) {
        let want: Vec<f64> = m.iter().cycle().take(divided.len()).map(|m| m / norm).collect();
        assert_close("divided", divided, &want, 2e-7);
    }
    let moved = |i: usize| momentum * m[i] + (1.0 - momentum) * scale * g[i];
    let ahead = |i: usize| (1.0 - momentum) * scale * g[i] + momentum * moved(i);
    assert_close("blend", &x, &each(&|i| w[i] * keep + step * g[i]), 2e-6);
    assert_close("momentum", &buffer, &each(&moved), 2e-6);
    assert_close("direction", &direction, &each(&|i| if nesterov { ahead(i) } else { moved(i) }), 2e-6);
    assert_eq!(working, x.iter().map(|w| T::of(f64::from(*w))).collect::<Vec<_>>());
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
