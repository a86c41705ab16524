//! Optimizers with states of 8 bits: golden values of bitsandbytes, pieces, devices, and what keeps f32.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::optimizer::{
    AdEmaMixArgs, Part, RmsPropArgs, Role, Rule, StepArgs, UpdateParts, Workspace, update,
};
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, Device, FlatBuffer, Par, Shape};

/// The last block is not whole.
const N: usize = 4096 + 300;
const EVERY: usize = 29;

type Golden = (&'static str, &'static [f32], &'static [f32], &'static [u8]);

/// The rules of `make_eight_bit.py` by their names there, with their learning rates.
fn rules() -> [(&'static str, Rule, f64); 4] {
    let ad_ema_mix =
        AdEmaMixArgs { betas: [0.9, 0.999, 0.9999], alpha: 5.0, eps: 1e-8, t_alpha: None, t_beta3: None };
    [
        ("adamw_8bit", Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 3e-3),
        ("lion_8bit", Rule::Lion { beta1: 0.9, beta2: 0.99 }, 1e-3),
        ("rmsprop_8bit", RmsPropArgs::default().rule(), 1e-3),
        ("ademamix_8bit", ad_ema_mix.rule(), 1e-3),
    ]
    .map(|(name, rule, lr)| (name, rule.in_8_bits().unwrap(), lr))
}

fn weight(i: usize) -> f32 {
    ((i * 37 % 101) as f32 - 50.0) / 40.0
}

fn gradient(i: usize, step: u64) -> f32 {
    let even = ((i * 53 + step as usize * 29 + i * i % 31) % 97) as f32 / 64.0 - 0.75;
    even * [1.0, 0.125, 0.015_625, 0.000_976_562_5][i / 7 % 4]
}

/// A parameter of [`N`] elements with its states.
struct ParamState {
    device: Device,
    rule: Rule,
    role: Role,
    weights: FlatBuffer,
    grads: FlatBuffer,
    states: Vec<FlatBuffer>,
}

impl ParamState {
    fn new(device: Device, rule: &Rule, role: Role) -> ParamState {
        let shape = Shape::new(&[N]).unwrap();
        let flat = |n: usize| FlatBuffer::pooled(&device, 4 * n, "test").unwrap();
        let lens = (0..rule.state_names().len()).map(|index| rule.state_len(index, &shape, role));
        let (states, weights, grads) = (lens.map(flat).collect(), flat(N), flat(N));
        let put = |values: &mut [f32]| values.iter_mut().enumerate().for_each(|(i, x)| *x = weight(i));
        transfer::write_with(&weights, 0..N, put).unwrap();
        ParamState { device, rule: rule.clone(), role, weights, grads, states }
    }

    /// Steps on these elements, whose states are at these places.
    fn step(&self, step: u64, lr: f64, pieces: &[(std::ops::Range<usize>, std::ops::Range<usize>)]) {
        let put = |values: &mut [f32]| {
            values.iter_mut().enumerate().for_each(|(i, x)| *x = 2.0 * gradient(i, step))
        };
        transfer::write_with(&self.grads, 0..N, put).unwrap();
        let args = StepArgs { step, lr, weight_decay: 0.1, grad_scale: 0.5 };
        for (elements, words) in pieces {
            let of = |flat, range: &std::ops::Range<usize>| Part { flat, range: range.clone() };
            let state: Vec<Part> = self.states.iter().map(|flat| of(flat, words)).collect();
            let parts = UpdateParts {
                weights: of(&self.weights, elements),
                dtype: DType::F32,
                master: None,
                grads: of(&self.grads, elements),
                state: &state,
            };
            let (shape, none) = (Shape::new(&[N]).unwrap(), &mut Workspace::new(&self.device, 0).unwrap());
            update(&self.device, &self.rule, &args, &shape, self.role, &parts, none).unwrap();
        }
    }

    fn weights(&self) -> Vec<f32> {
        transfer::read_with(&self.weights, 0..N, <[f32]>::to_vec).unwrap()
    }

    /// The bits of everything.
    fn bits(&self) -> Vec<u32> {
        let of = |flat: &FlatBuffer| {
            transfer::read_with(flat, 0..flat.len_bytes() / 4, |x: &[f32]| {
                x.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            })
        };
        self.states.iter().chain([&self.weights]).flat_map(|flat| of(flat).unwrap()).collect()
    }
}

fn cpu(threads: usize) -> Device {
    Device::cpu(Isa::detect(), Par::threads(threads).unwrap())
}

/// 18 blocks of 65 words.
fn whole() -> [(std::ops::Range<usize>, std::ops::Range<usize>); 1] {
    [(0..N, 0..18 * 65)]
}

#[test]
fn thirty_steps_are_those_of_bitsandbytes() {
    let golden: &[Golden] = include!("golden/eight_bit.in");
    for ((name, rule, lr), (of, weights, absmax, codes)) in rules().into_iter().zip(golden) {
        assert_eq!(name, *of);
        assert_eq!(rule.name(), name);
        let held = ParamState::new(cpu(2), &rule, Role::Matrix);
        (1..=30).for_each(|step| held.step(step, lr, &whole()));
        let got = held.weights();
        let wrong = got.iter().step_by(EVERY).zip(*weights).filter(|(got, want)| (*got - *want).abs() > 1e-5);
        assert_eq!(wrong.collect::<Vec<_>>(), [], "{name}");
        let words = transfer::read_with(&held.states[0], 0..18 * 65, <[f32]>::to_vec).unwrap();
        for (block, want) in absmax.iter().enumerate() {
            let got = words[65 * block + 64];
            assert!((got - want).abs() <= 1e-5 * want, "{name}, block {block}: {got}, not {want}");
        }
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        for (at, want) in codes.iter().enumerate() {
            let i = at * EVERY;
            assert_eq!(bytes[260 * (i / 256) + i % 256], *want, "{name}, element {i}");
        }
    }
}

#[test]
fn pieces_threads_and_devices_change_no_bit() {
    // Ranks and buffers cut parameters at multiples of 4,096 elements, blocks at 256.
    let pieces = [(4096..N, 16 * 65..18 * 65), (0..512, 0..2 * 65), (512..4096, 2 * 65..16 * 65)];
    for (name, rule, lr) in rules() {
        let run = |device: Device, pieces: &[_]| {
            let held = ParamState::new(device, &rule, Role::Other);
            (1..=3).for_each(|step| held.step(step, lr, pieces));
            held.bits()
        };
        let want = run(cpu(1), &whole());
        assert_eq!(run(cpu(3), &pieces), want, "{name}");
        for device in [Device::strict, Device::staging] {
            assert_eq!(run(device(Isa::detect(), Par::solo()), &whole()), want, "{name}");
        }
    }
}

#[test]
fn embeddings_and_small_parameters_keep_f32() {
    for (name, rule, lr) in rules() {
        let Rule::EightBit(eight_bit) = &rule else { panic!("{name}") };
        let sizes =
            |n: usize, role| rule.state_shape(0, &Shape::new(&[n]).unwrap(), role).unwrap().sizes().to_vec();
        assert_eq!(sizes(4096, Role::Other), [16, 65]);
        assert_eq!((sizes(4095, Role::Matrix), sizes(4096, Role::Embedding)), (vec![4095], vec![4096]));
        let [packed, plain] = [&rule, eight_bit.rule()].map(|rule| {
            let held = ParamState::new(cpu(1), rule, Role::Embedding);
            (1..=2).for_each(|step| held.step(step, lr, &[(0..N, 0..N)]));
            held.bits()
        });
        assert_eq!(packed, plain, "{name}");
    }
}

#[test]
fn only_rules_for_each_element_by_itself_have_8_bits() {
    let sgd = Rule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false };
    assert!(sgd.in_8_bits().is_none());
    let rule = Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }.in_8_bits().unwrap();
    assert_eq!(rule, Rule::adamw_8bit(0.9, 0.95, 1e-8));
    assert!(rule.clone().in_8_bits().is_none());
    // A schedule sets the decays of the rule inside.
    assert_eq!(rule.betas(), Some([0.9, 0.95]));
    assert_eq!(rule.with_betas([0.5, 0.6]).betas(), Some([0.5, 0.6]));
}
