//! Every kernel gives the same bits on every path and for every number of threads, and rounds the working copy.

use oarlock_kernels::optim::adafactor::{self, AdafactorArgs, Extent};
use oarlock_kernels::optim::adagrad::Adagrad;
use oarlock_kernels::optim::adam::Adam;
use oarlock_kernels::optim::lamb::{self, LambArgs};
use oarlock_kernels::optim::lion::Lion;
use oarlock_kernels::optim::muon::{self, MuonArgs};
use oarlock_kernels::optim::sgd::Sgd;
use oarlock_kernels::optim::{self, Buffers, Elementwise, StepArgs, states};
use oarlock_kernels::pieces::TASK_ELEMS;
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
            assert_close(&found.0, &f64s(&reference), 1e-5);
        }
    }
}
