//! Every kernel gives bitwise identical results on every path and for every number of threads, and rounds the working
//! copy.

use oarlock_kernels::optim::adafactor::{self, AdafactorArgs, Extent};
use oarlock_kernels::optim::adagrad::Adagrad;
use oarlock_kernels::optim::adam::Adam;
use oarlock_kernels::optim::eight_bit;
use oarlock_kernels::optim::lamb::{self, LambArgs};
use oarlock_kernels::optim::lion::Lion;
use oarlock_kernels::optim::muon::{self, MuonArgs};
use oarlock_kernels::optim::sgd::Sgd;
use oarlock_kernels::optim::{self, Buffers, Elementwise, StepArgs, states};
use oarlock_kernels::pieces::TASK_ELEMS;
use oarlock_kernels::quantized::{dynamic_map, unsigned_dynamic_map};
use oarlock_kernels::{Cpu, Par, bf16};

use crate::everywhere::{assert_close, cpus, f64s, same_everywhere, values};

const ARGS: StepArgs = StepArgs { step: 7, lr: 3e-3, weight_decay: 0.1, grad_scale: 0.5 };

/// Weights, three states of these lengths and a working copy after a step; its rounding is checked, and that the
/// weights do not depend on it.
fn after<const N: usize>(
    n: usize,
    lens: [usize; N],
    step: impl Fn(Buffers<'_, bf16>),
) -> (Vec<f32>, [Vec<f32>; 3]) {
    let grad = values::<f32>(1, n);
    let take = |rounded: bool| {
        let mut weights = values::<f32>(2, n);
        let mut state = [const { Vec::new() }; 3];
        for (seed, (state, len)) in (3..).zip(state.iter_mut().zip(lens)) {
            *state = values::<f32>(seed, len).into_iter().map(f32::abs).collect();
        }
        let mut copy = vec![bf16::ZERO; n];
        let working = rounded.then_some(&mut copy[..]);
        step(Buffers {
            weights: &mut weights,
            state: states(state.each_mut().map(|s| &mut s[..])),
            grad: &grad,
            working,
        });
        assert!(!rounded || copy.iter().zip(&weights).all(|(c, w)| *c == bf16::from_f32(*w)));
        (weights, state)
    };
    let fresh = take(true);
    assert_eq!(take(false), fresh);
    fresh
}

fn elementwise<R: Elementwise>(rule: R, n_states: usize) {
    for n in [0, 1, 1030, TASK_ELEMS + 333] {
        let lens = [n, n].map(|n| n);
        let lens = [if n_states > 0 { lens[0] } else { 0 }, if n_states > 1 { lens[1] } else { 0 }];
        same_everywhere(|cpu| after(n, lens, |buffers| optim::step(cpu, rule, buffers)));
    }
}

#[test]
fn elementwise_rules_give_the_same_bits_everywhere() {
    elementwise(Adam::<true>::new(0.9, 0.95, 1e-8, &ARGS), 2);
    elementwise(Adam::<false>::new(0.9, 0.95, 1e-8, &ARGS), 2);
    elementwise(Sgd::new(0.0, 0.0, false, &ARGS), 0);
    elementwise(Sgd::new(0.9, 0.1, false, &ARGS), 1);
    elementwise(Sgd::new(0.9, 0.0, true, &ARGS), 1);
    elementwise(Adagrad::new(0.01, 0.1, 1e-10, &ARGS), 1);
    elementwise(Lion::new(0.9, 0.99, &ARGS), 1);
}

#[test]
fn states_of_8_bits_have_the_same_bits_everywhere() {
    let signs = [true, false, true, true, true, true, true, true];
    for n in [0, 1, 1030, TASK_ELEMS + 333] {
        let words = eight_bit::words(n);
        // Any bits are a state, but for those of no scale.
        let run = |cpu: &Cpu, n_states: usize, step: &dyn Fn(Buffers<'_, bf16>)| {
            let grad = values::<f32>(1, n);
            let (mut weights, mut copy) = (values::<f32>(2, n), vec![bf16::ZERO; n]);
            let mut state = [3, 4].map(|seed| values::<f32>(seed, words));
            state.iter_mut().flatten().for_each(|x| *x = x.abs());
            let [first, second] = &mut state;
            let kept = [&mut first[..], if n_states > 1 { second } else { &mut [] }];
            step(Buffers {
                weights: &mut weights,
                state: states(kept),
                grad: &grad,
                working: Some(&mut copy),
            });
            assert!(copy.iter().zip(&weights).all(|(c, w)| *c == bf16::from_f32(*w)), "{cpu:?}");
            // Codes are not numbers.
            (weights, state.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>())
        };
        let adam = Adam::<true>::new(0.9, 0.95, 1e-8, &ARGS);
        same_everywhere(|cpu| run(cpu, 2, &|buffers| eight_bit::step(cpu, adam, signs, buffers)));
        let lion = Lion::new(0.9, 0.99, &ARGS);
        same_everywhere(|cpu| run(cpu, 1, &|buffers| eight_bit::step(cpu, lion, signs, buffers)));
    }
}

#[test]
fn a_code_is_that_of_the_nearest_value() {
    for (is_signed, map) in [(true, dynamic_map()), (false, unsigned_dynamic_map())] {
        // Both ends of each upper half of a float from 2^-25 on, and two floats between them.
        let shares =
            (0x3300..0x3f80).flat_map(|upper: u32| [0, 1, 0x5555, 0xffff].map(|low| upper << 16 | low));
        let mut shares: Vec<f32> = shares.map(f32::from_bits).collect();
        shares.extend([0.0, -0.0, 1.0, 1e-40]);
        if is_signed {
            shares.extend(shares.clone().iter().map(|x| -x));
        }
        let isa = cpus()[0].isa;
        // Each block has a 1, so that shares are what they are.
        for shares in shares.chunks(eight_bit::BLOCK - 1) {
            let values = [shares, &[1.0]].concat();
            let mut words = vec![0.0; eight_bit::words(values.len())];
            eight_bit::quantize(isa, is_signed, &mut values.clone(), &mut words);
            let mut found = vec![0.0; values.len()];
            eight_bit::dequantize(isa, is_signed, &words, &mut found);
            for (x, found) in values.iter().zip(&found) {
                let distance = |value: &f32| (f64::from(*value) - f64::from(*x)).abs();
                let nearest = map.iter().map(distance).fold(f64::INFINITY, f64::min);
                // Of two that are as near as an f32 can tell either will do.
                assert!(distance(found) <= nearest + 1e-6 * f64::from(x.abs()), "{is_signed}, {x}: {found}");
            }
        }
        // Numbers that are none do no harm, and nothing stays nothing.
        let mut words = vec![0.0; eight_bit::WORDS];
        eight_bit::quantize(isa, is_signed, &mut [f32::NAN, f32::INFINITY, -1.0, 0.0], &mut words);
        eight_bit::quantize(isa, is_signed, &mut [0.0; 4], &mut words);
        let mut found = [1.0; 4];
        eight_bit::dequantize(isa, is_signed, &words, &mut found);
        assert_eq!(found, [0.0; 4]);
    }
}

#[test]
fn lamb_gives_the_same_bits_everywhere() {
    for eps_inside_sqrt in [false, true] {
        let args = LambArgs {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-6,
            eps_inside_sqrt,
            bias_correction: true,
            max_coeff: 10.0,
            min_coeff: 0.01,
        };
        for n in [0, 1, 4097, TASK_ELEMS + 333] {
            same_everywhere(|cpu| {
                let mut scratch = vec![f64::NAN; lamb::scratch_len(n)];
                let scratch = std::cell::RefCell::new(&mut scratch);
                after(n, [n, n], |buffers| lamb::step(cpu, &args, &ARGS, buffers, &mut scratch.borrow_mut()))
            });
        }
    }
}

#[test]
fn adafactor_gives_the_same_bits_everywhere() {
    for sizes in
        [&[][..], &[5], &[20_001], &[7, 3], &[1, 6000], &[3000, 7], &[130, 260], &[2, 33, 65], &[0, 4]]
    {
        let extent = Extent::new(sizes);
        let n: usize = sizes.iter().product();
        let lens = if sizes.len() < 2 {
            [0, 0, n]
        } else {
            [extent.batch * extent.rows, extent.batch * extent.cols, 0]
        };
        for adafactor in [AdafactorArgs::TORCH, AdafactorArgs::TRANSFORMERS] {
            same_everywhere(|cpu| {
                after(n, lens, |buffers| {
                    let mut scratch = vec![f64::NAN; extent.scratch_len()];
                    adafactor::step(cpu, &adafactor, &ARGS, extent, buffers, &mut scratch);
                })
            });
        }
    }
}

const MUON: MuonArgs = MuonArgs {
    momentum: 0.95,
    nesterov: true,
    ns_coefficients: [3.4445, -4.775, 2.0315],
    ns_steps: 5,
    eps: 1e-7,
    adjusted_lr: 0.02,
};

fn muon_step(cpu: &Cpu, (rows, cols): (usize, usize), buffers: Buffers<'_, bf16>) {
    let mut scratch = vec![f32::NAN; muon::scratch_len(rows, cols)];
    let mut products = vec![0; muon::product_scratch_bytes(cpu, rows, cols)];
    muon::step(cpu, &MUON, &ARGS, (rows, cols), buffers, &mut scratch, &mut products);
}

#[test]
fn muon_does_not_depend_on_threads_and_hardly_on_the_path() {
    for (rows, cols) in [(1, 1), (40, 40), (33, 130), (130, 33), (200, 1), (0, 3)] {
        let n = rows * cols;
        let step = |cpu: &Cpu| after(n, [n], |buffers| muon_step(cpu, (rows, cols), buffers));
        let (reference, _) = step(&cpus()[0]);
        for cpu in cpus() {
            let found = step(&cpu);
            assert_eq!(found, step(&Cpu { isa: cpu.isa, par: Par::solo() }), "{cpu:?}");
            assert_close("weights", &found.0, &f64s(&reference), 1e-5);
        }
    }
}
