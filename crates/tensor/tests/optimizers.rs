//! Optimizers through the public door: golden values of torch and DeepSpeed, zero gradients, runs, and wrong parts.

#![allow(clippy::disallowed_methods, reason = "what is expected is compared within tolerances")]

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::optimizer::{
    AdEmaMixArgs, AdafactorArgs, AdjustLr, CustomRule, Needs, Part, RmsPropArgs, Role, Rule, StepArgs,
    Target, Update, UpdateParts, Workspace, update, update_all, workspace_bytes,
};
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{CudaLibraries, DType, Device, Error, FlatBuffer, Par, Result, Shape, bf16};

type Golden = (&'static str, &'static [usize], &'static [f32]);

/// AdamW, written again.
#[derive(Clone, Debug)]
struct AdamW {
    betas: [f64; 2],
    eps: f64,
}

impl CustomRule<2> for AdamW {
    fn name(&self) -> &'static str {
        "custom_adamw"
    }

    fn states(&self) -> [&'static str; 2] {
        ["exp_avg", "exp_avg_sq"]
    }

    fn update(&self, update: Update<'_, 2>) {
        let Update { weights, grad, states: [first, second], step, lr, weight_decay, .. } = update;
        let [correction1, correction2] = self.betas.map(|beta| 1.0 - beta.powf(step as f64));
        let (keep, step_size) = ((1.0 - lr * weight_decay) as f32, (lr / correction1) as f32);
        let (root, eps) = (correction2.sqrt() as f32, self.eps as f32);
        let (beta2, [rest1, rest2]) = (self.betas[1] as f32, self.betas.map(|beta| (1.0 - beta) as f32));
        for (((w, m), v), g) in weights.iter_mut().zip(first).zip(second).zip(grad) {
            *m += rest1 * (g - *m);
            *v = *v * beta2 + rest2 * g * g;
            *w = *w * keep - step_size * *m / (v.sqrt() / root + eps);
        }
    }

    fn betas(&self) -> Option<[f64; 2]> {
        Some(self.betas)
    }

    fn with_betas(self, betas: [f64; 2]) -> AdamW {
        AdamW { betas, ..self }
    }
}

/// Gradients of matrices are divided by the root mean square of their row, which is kept: a rule of whole parameters with
/// a state of another shape.
#[derive(Clone, Debug)]
struct Rows;

impl CustomRule<2> for Rows {
    fn name(&self) -> &'static str {
        "custom_rows"
    }

    fn states(&self) -> [&'static str; 2] {
        ["momentum_buffer", "row_var"]
    }

    fn update(&self, update: Update<'_, 2>) {
        let Update { weights, grad, states: [buffer, row_var], sizes, lr, weight_decay, .. } = update;
        let n_cols = sizes.last().copied().unwrap_or(1).max(1);
        let rows = weights.chunks_mut(n_cols).zip(buffer.chunks_mut(n_cols)).zip(grad.chunks(n_cols));
        for (row, ((weights, buffer), grad)) in rows.enumerate() {
            let mut root = 1.0;
            if let Some(var) = row_var.get_mut(row) {
                *var = 0.9 * *var + 0.1 * grad.iter().map(|g| g * g).sum::<f32>() / n_cols as f32;
                root = var.sqrt() + 1e-6;
            }
            for ((w, b), g) in weights.iter_mut().zip(buffer).zip(grad) {
                *b = 0.9 * *b + g / root;
                *w -= lr as f32 * (*b + weight_decay as f32 * *w);
            }
        }
    }

    fn needs(&self) -> Needs {
        Needs::WholeParameters
    }

    fn state_shape(&self, index: usize, shape: &Shape) -> Option<Shape> {
        match (index, shape.sizes()) {
            (1, &[rows, _]) => Shape::new(&[rows, 1]).ok(),
            (1, _) => None,
            _ => Some(*shape),
        }
    }
}

/// Each rule of `make_optimizers.py` by its name there, with its learning rate and weight decay, and custom ones.
fn rules() -> Vec<(&'static str, Rule, f64, f64)> {
    let adam = |beta1, beta2, eps| Rule::Adam { beta1, beta2, eps };
    let sgd = |momentum, dampening, nesterov| Rule::Sgd { momentum, dampening, nesterov };
    let adagrad =
        |lr_decay, initial_accumulator_value, eps| Rule::Adagrad { lr_decay, initial_accumulator_value, eps };
    let adafactor = AdafactorArgs { beta2_decay: -0.5, eps1: 1e-3, eps2: 1e-2, d: 1.2, relative: true };
    let of_transformers = AdafactorArgs { beta2_decay: -0.5, d: 1.2, ..AdafactorArgs::TRANSFORMERS };
    let rms_prop = |alpha, eps, momentum, centered| RmsPropArgs { alpha, eps, momentum, centered }.rule();
    let ad_ema_mix = |betas, alpha, [t_alpha, t_beta3]: [Option<u64>; 2]| {
        AdEmaMixArgs { betas, alpha, eps: 1e-8, t_alpha, t_beta3 }.rule()
    };
    let muon = |momentum, nesterov, ns_steps, adjust_lr| Rule::Muon {
        momentum,
        nesterov,
        ns_coefficients: [3.4445, -4.775, 2.0315],
        ns_steps,
        eps: 1e-7,
        adjust_lr,
        adam_lr_ratio: 0.5,
        adam_beta1: 0.9,
        adam_beta2: 0.95,
        adam_eps: 1e-8,
    };
    let lamb = Rule::Lamb {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        eps_inside_sqrt: false,
        bias_correction: true,
        max_coeff: 10.0,
        min_coeff: 0.01,
    };
    let clamped_lamb = Rule::Lamb {
        beta1: 0.8,
        beta2: 0.99,
        eps: 1e-4,
        eps_inside_sqrt: true,
        bias_correction: false,
        max_coeff: 1.5,
        min_coeff: 0.8,
    };
    vec![
        ("adamw", Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 3e-3, 0.1),
        ("adam", adam(0.8, 0.999, 1e-6), 3e-3, 0.1),
        ("sgd", sgd(0.0, 0.0, false), 1e-2, 0.1),
        ("sgd_momentum", sgd(0.9, 0.2, false), 1e-2, 0.01),
        ("sgd_nesterov", sgd(0.9, 0.0, true), 1e-2, 0.0),
        ("adagrad", adagrad(0.0, 0.0, 1e-10), 1e-2, 0.0),
        ("adagrad_arguments", adagrad(0.1, 0.3, 1e-6), 1e-2, 0.1),
        ("lion", Rule::Lion { beta1: 0.9, beta2: 0.99 }, 1e-3, 0.1),
        ("lamb", lamb, 1e-3, 0.01),
        ("lamb_arguments", clamped_lamb, 1e-3, 0.0),
        ("adafactor", Rule::Adafactor(AdafactorArgs::TORCH), 1e-2, 0.0),
        ("adafactor_arguments", Rule::Adafactor(adafactor), 0.5, 0.1),
        ("muon", muon(0.95, true, 5, AdjustLr::Original), 2e-2, 0.1),
        ("muon_arguments", muon(0.9, false, 3, AdjustLr::MatchRmsAdamW), 2e-3, 0.0),
        ("adafactor_transformers", Rule::Adafactor(AdafactorArgs::TRANSFORMERS), 1e-2, 0.0),
        ("adafactor_transformers_arguments", Rule::Adafactor(of_transformers), 3e-3, 0.1),
        ("rmsprop", rms_prop(0.99, 1e-8, 0.0, false), 1e-3, 0.0),
        ("rmsprop_momentum", rms_prop(0.9, 1e-8, 0.8, false), 1e-3, 0.1),
        ("rmsprop_centered", rms_prop(0.99, 1e-3, 0.5, true), 1e-3, 0.0),
        ("ademamix", ad_ema_mix([0.9, 0.999, 0.9999], 5.0, [None; 2]), 1e-3, 0.1),
        ("ademamix_arguments", ad_ema_mix([0.8, 0.99, 0.999], 3.0, [Some(30), Some(15)]), 1e-3, 0.0),
        ("custom_adamw", Rule::custom(AdamW { betas: [0.9, 0.95], eps: 1e-8 }), 3e-3, 0.1),
        ("custom_rows", Rule::custom(Rows), 1e-2, 0.1),
    ]
}

fn weight(i: usize) -> f32 {
    ((i * 37 % 101) as f32 - 50.0) / 40.0
}

fn gradient(i: usize, step: u64) -> f32 {
    ((i * 53 + step as usize * 29 + i * i % 31) % 97) as f32 / 64.0 - 0.75
}

/// One parameter with everything that a rule keeps for it, each in a flat buffer of its own.
struct ParamState {
    device: Device,
    rule: Rule,
    shape: Shape,
    role: Role,
    dtype: DType,
    weights: FlatBuffer,
    master: Option<FlatBuffer>,
    grads: FlatBuffer,
    state: Vec<FlatBuffer>,
}

/// Fills a flat buffer with values by their places.
fn fill(flat: &FlatBuffer, of: impl Fn(usize) -> f32) {
    let put = |values: &mut [f32]| values.iter_mut().enumerate().for_each(|(i, value)| *value = of(i));
    transfer::write_with(flat, 0..flat.len_bytes() / 4, put).unwrap();
}

impl ParamState {
    fn new(rule: &Rule, sizes: &[usize], role: Role, dtype: DType) -> ParamState {
        ParamState::on(Device::cpu(Isa::detect(), Par::threads(2).unwrap()), rule, sizes, role, dtype)
    }

    fn on(device: Device, rule: &Rule, sizes: &[usize], role: Role, dtype: DType) -> ParamState {
        let shape = Shape::new(sizes).unwrap();
        let flat = |n: usize| FlatBuffer::pooled(&device, 4 * n, "test").unwrap();
        let n = shape.n_elems();
        let state = (0..rule.state_names().len()).map(|i| flat(rule.state_len(i, &shape, role))).collect();
        let master = (dtype != DType::F32).then(|| flat(n));
        let (weights, grads) = (flat(n), flat(n));
        fill(master.as_ref().unwrap_or(&weights), weight);
        ParamState { device, rule: rule.clone(), shape, role, dtype, weights, master, grads, state }
    }

    fn set_gradient(&self, of: impl Fn(usize) -> f32) {
        fill(&self.grads, of);
    }

    /// A step on the elements that `run` names, or on the whole parameter.
    fn step(&self, args: &StepArgs, run: Option<std::ops::Range<usize>>) -> Result<()> {
        let n = self.shape.n_elems();
        let of = |flat, whole: usize| Part { flat, range: run.clone().unwrap_or(0..whole) };
        let len = |index| self.rule.state_len(index, &self.shape, self.role);
        let state: Vec<Part> = self.state.iter().enumerate().map(|(i, flat)| of(flat, len(i))).collect();
        let parts = UpdateParts {
            weights: of(&self.weights, n),
            dtype: self.dtype,
            master: self.master.as_ref().map(|flat| of(flat, n)),
            grads: of(&self.grads, n),
            state: &state,
        };
        let bytes = workspace_bytes(&self.device, &self.rule, &self.shape, self.role);
        let workspace = &mut Workspace::new(&self.device, bytes)?;
        update(&self.device, &self.rule, args, &self.shape, self.role, &parts, workspace)
    }

    fn master(&self) -> Vec<f32> {
        let flat = self.master.as_ref().unwrap_or(&self.weights);
        transfer::read_with(flat, 0..self.shape.n_elems(), <[f32]>::to_vec).unwrap()
    }

    fn all_values(&self) -> Vec<f32> {
        let mut all = self.master();
        for (index, state) in self.state.iter().enumerate() {
            let len = self.rule.state_len(index, &self.shape, self.role);
            all.extend(transfer::read_with(state, 0..len, <[f32]>::to_vec).unwrap());
        }
        all
    }
}

/// Lion is DeepSpeed's CPU kernel, AdEMAMix the reference of bitsandbytes, one Adafactor that of transformers, and all others are
/// torch's, but for Lamb, which nobody has for a CPU: its formula. The iteration of torch's Muon runs in f32.
#[test]
fn twenty_steps_are_those_of_torch_and_deepspeed() {
    let golden: &[Golden] = include!("golden/optimizers.in");
    let mut n_found = 0;
    for (name, rule, lr, weight_decay) in rules() {
        for (_, sizes, want) in golden.iter().filter(|(of, ..)| *of == name) {
            let held = ParamState::new(&rule, sizes, Role::Matrix, DType::F32);
            for step in 1..=20 {
                // Twice the gradient, halved: the scale is applied.
                held.set_gradient(|i| 2.0 * gradient(i, step));
                held.step(&StepArgs { step, lr, weight_decay, grad_scale: 0.5 }, None).unwrap();
            }
            for (i, (got, want)) in held.master().iter().zip(*want).enumerate() {
                assert!((got - want).abs() <= 1e-5, "{name} {sizes:?}, element {i}: {got}, not {want}");
            }
            n_found += 1;
        }
    }
    assert_eq!(n_found, golden.len());
}

#[test]
fn zero_gradients_leave_no_nan_and_zero_weights_at_zero() {
    for (name, rule, lr, weight_decay) in rules() {
        for sizes in [&[4, 6][..], &[5], &[0, 3]] {
            let held = ParamState::new(&rule, sizes, Role::Matrix, DType::BF16);
            fill(held.master.as_ref().unwrap(), |_| 0.0);
            for step in 1..=3 {
                held.step(&StepArgs { step, lr, weight_decay, grad_scale: 1.0 }, None).unwrap();
            }
            assert!(held.all_values().iter().all(|x| x.is_finite()), "{name} {sizes:?}");
            assert!(held.master().iter().all(|x| *x == 0.0), "{name} {sizes:?}");
        }
    }
}

#[test]
fn the_working_copy_is_the_master_rounded() {
    for (name, rule, lr, weight_decay) in rules() {
        let args = StepArgs { step: 1, lr, weight_decay, grad_scale: 1.0 };
        let held = [DType::BF16, DType::F32].map(|dtype| {
            let held = ParamState::new(&rule, &[6, 10], Role::Matrix, dtype);
            held.set_gradient(|i| gradient(i, 1));
            held.step(&args, None).unwrap();
            held
        });
        assert_eq!(held[0].master(), held[1].master(), "{name}");
        let working = transfer::read_with(&held[0].weights, 0..60, <[bf16]>::to_vec).unwrap();
        let pairs = working.into_iter().zip(held[0].master());
        assert!(pairs.into_iter().all(|(working, master)| working == bf16::from_f32(master)), "{name}");
    }
}

/// Steps that nobody looks at run late, on memory that only they can touch, and are bitwise identical to the CPU's.
#[test]
fn the_strict_device_has_the_bits_of_the_cpu() {
    for (name, rule, lr, weight_decay) in rules() {
        let run = |device: fn(Isa, Par) -> Device| {
            let device = device(Isa::detect(), Par::threads(2).unwrap());
            let held = ParamState::on(device, &rule, &[6, 10], Role::Matrix, DType::BF16);
            held.set_gradient(|i| gradient(i, 1));
            for step in 1..=3 {
                held.step(&StepArgs { step, lr, weight_decay, grad_scale: 1.0 }, None).unwrap();
            }
            held.all_values()
        };
        let want = run(Device::cpu);
        assert_eq!(run(Device::strict), want, "{name}");
        assert_eq!(run(Device::staging), want, "{name}");
    }
}

#[test]
fn a_gpu_takes_the_steps_of_the_cpu() {
    let folder = oarlock_fakes::shared_fakes(env!("CARGO_TARGET_TMPDIR").as_ref(), &["32", "64"]).unwrap();
    let Some(folder) = folder else { return };
    let libraries = CudaLibraries::Folder(folder);
    let gpu = Device::cuda_of(&libraries, 0, Isa::detect(), Par::solo()).unwrap();
    let cpu = Device::cpu(Isa::detect(), Par::solo());
    for (name, rule, lr, weight_decay) in rules() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let [want, got] = [&cpu, &gpu].map(|device| {
                let held = ParamState::on(device.clone(), &rule, &[6, 50], Role::Matrix, dtype);
                for step in 1..=3 {
                    held.set_gradient(|i| 2.0 * gradient(i, step));
                    held.step(&StepArgs { step, lr, weight_decay, grad_scale: 0.5 }, None).unwrap();
                }
                let mut working = vec![0.0; 300];
                transfer::load(&held.weights, 0, dtype, &mut working).unwrap();
                [held.all_values(), working].concat()
            });
            let n_f32 = got.len() - if dtype == DType::F32 { 0 } else { 300 };
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                // A value on the edge between two of 16 bits may be rounded to either.
                let bound = if i < n_f32 { 2e-6 } else { 1e-2 };
                assert!(
                    (got - want).abs() <= bound * want.abs().max(1.0),
                    "{name} {dtype}, element {i}: {got}, not {want}"
                );
            }
        }
    }
    let staged = gpu.staged_ops();
    let own = ["adamw", "adam", "sgd", "lion", "adagrad"];
    assert!(own.iter().all(|name| !staged.iter().any(|op| op == name)), "{staged:?}");
}

/// Many pieces in one step are bitwise identical to one after the other, on a GPU in as many launches as 64 pieces of
/// each kind of working copy take.
#[test]
fn many_pieces_are_one_step() {
    let folder = oarlock_fakes::shared_fakes(env!("CARGO_TARGET_TMPDIR").as_ref(), &["32", "64"]).unwrap();
    let cpu = Device::cpu(Isa::detect(), Par::solo());
    let gpu = folder.map(|folder| {
        Device::cuda_of(&CudaLibraries::Folder(folder), 0, Isa::detect(), Par::solo()).unwrap()
    });
    for device in gpu.iter().chain([&cpu]) {
        for (name, rule, lr, weight_decay) in rules() {
            let args = |step| StepArgs { step, lr, weight_decay, grad_scale: 0.5 };
            let held = |dtype| ParamState::on(device.clone(), &rule, &[700], Role::Other, dtype);
            let [one, all] = [(), ()].map(|()| [held(DType::F32), held(DType::BF16)]);
            // Gaps between some of them, 70 in all.
            let runs = |held: &ParamState| match held.dtype {
                DType::F32 => (0..4).map(|i| 150 * i..150 * i + 101 + i).collect::<Vec<_>>(),
                _ => (0..66).map(|i| 10 * i..10 * i + 9).collect(),
            };
            for step in 1..=2 {
                one.iter().chain(&all).for_each(|held| held.set_gradient(|i| gradient(i, step)));
                if rule.needs() == Needs::Elementwise {
                    let alone = |held: &ParamState| {
                        runs(held).into_iter().for_each(|run| held.step(&args(step), Some(run)).unwrap());
                    };
                    one.iter().for_each(alone);
                }
                let state = |held: &ParamState,
                             run: &std::ops::Range<usize>|
                 -> Vec<(FlatBuffer, std::ops::Range<usize>)> {
                    held.state.iter().map(|flat| (flat.clone(), run.clone())).collect()
                };
                let pieces: Vec<_> = (all.iter())
                    .flat_map(|held| runs(held).into_iter().map(move |run| (held, state(held, &run), run)))
                    .collect();
                let state: Vec<Vec<Part>> = (pieces.iter())
                    .map(|(_, state, _)| {
                        state.iter().map(|(flat, range)| Part { flat, range: range.clone() }).collect()
                    })
                    .collect();
                let targets: Vec<Target> = (pieces.iter().zip(&state))
                    .map(|((held, _, run), state)| {
                        let part = |flat| Part { flat, range: run.clone() };
                        let parts = UpdateParts {
                            weights: part(&held.weights),
                            dtype: held.dtype,
                            master: held.master.as_ref().map(part),
                            grads: part(&held.grads),
                            state,
                        };
                        Target { shape: held.shape, role: held.role, parts }
                    })
                    .collect();
                device.profile().enable();
                let none = &mut Workspace::new(device, 0).unwrap();
                let done = update_all(device, &rule, &args(step), &targets, none);
                let ran = device.profile().take();
                if rule.needs() != Needs::Elementwise {
                    assert!(matches!(done, Err(Error::Shape { .. } | Error::Usage(_))), "{name}");
                    break;
                }
                done.unwrap();
                let calls: u64 = ran.iter().map(|(_, op)| op.calls).sum();
                let is_own = ["adamw", "adam", "sgd", "lion", "adagrad"].contains(&rule.name());
                assert_eq!(calls, if device.is_cuda() && is_own { 3 } else { 70 }, "{name}: {ran:?}");
            }
            for (one, all) in one.iter().zip(&all) {
                assert_eq!(one.all_values(), all.all_values(), "{name}");
            }
        }
    }
}

#[test]
fn elementwise_rules_may_be_run_in_pieces() {
    for (name, rule, lr, weight_decay) in rules() {
        let args = |step| StepArgs { step, lr, weight_decay, grad_scale: 1.0 };
        let [whole, pieces] = [(), ()].map(|()| ParamState::new(&rule, &[3000], Role::Other, DType::F32));
        for step in 1..=2 {
            for held in [&whole, &pieces] {
                held.set_gradient(|i| gradient(i, step));
            }
            whole.step(&args(step), None).unwrap();
            if rule.needs() == Needs::Elementwise {
                pieces.step(&args(step), Some(1200..3000)).unwrap();
                pieces.step(&args(step), Some(0..1200)).unwrap();
                assert_eq!(whole.all_values(), pieces.all_values(), "{name}");
            } else {
                let error = pieces.step(&args(step), Some(0..1200)).unwrap_err();
                assert!(matches!(error, Error::Shape { .. }), "{name}: {error}");
            }
        }
    }
}

#[test]
fn only_hidden_matrices_are_made_orthogonal() {
    let muon = rules().into_iter().find(|(name, ..)| *name == "muon").unwrap().1;
    let shape = Shape::new(&[8, 4]).unwrap();
    let lens = |role| [0, 1, 2].map(|index| muon.state_len(index, &shape, role));
    assert_eq!(lens(Role::Matrix), [32, 0, 0]);
    assert_eq!(lens(Role::Other), [0, 32, 32]);
    let step = |rule, role, lr| {
        let held = ParamState::new(rule, &[8, 4], role, DType::F32);
        held.set_gradient(|i| gradient(i, 1));
        held.step(&StepArgs { step: 1, lr, weight_decay: 0.0, grad_scale: 1.0 }, None).unwrap();
        held.master()
    };
    let adamw = Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    assert_eq!(step(&muon, Role::Other, 0.02), step(&adamw, Role::Other, 0.01));
    assert_ne!(step(&muon, Role::Matrix, 0.02), step(&adamw, Role::Other, 0.01));
}

#[test]
fn factored_state_has_torch_shapes() {
    let rule = Rule::Adafactor(AdafactorArgs::TORCH);
    let shapes = |sizes: &[usize]| {
        let shape = Shape::new(sizes).unwrap();
        [0, 1, 2].map(|i| rule.state_shape(i, &shape, Role::Other).map(|shape| shape.sizes().to_vec()))
    };
    assert_eq!(shapes(&[7, 5]), [Some(vec![7, 1]), Some(vec![1, 5]), None]);
    assert_eq!(shapes(&[2, 7, 5]), [Some(vec![2, 7, 1]), Some(vec![2, 1, 5]), None]);
    assert_eq!(shapes(&[5]), [None, None, Some(vec![5])]);
}

#[test]
fn wrong_parts_are_refused() {
    let rule = Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    let args = StepArgs { step: 1, lr: 0.1, weight_decay: 0.0, grad_scale: 1.0 };
    let held = ParamState::new(&rule, &[16], Role::Other, DType::F32);
    let beyond = held.step(&args, Some(8..17)).unwrap_err();
    assert!(beyond.to_string().contains("a part of the 16 elements of weights"), "{beyond}");

    let part = |flat| Part { flat, range: 0..16 };
    let parts = |dtype, state| UpdateParts {
        weights: part(&held.weights),
        dtype,
        master: None,
        grads: part(&held.grads),
        state,
    };
    let states = [part(&held.state[0]), part(&held.state[1])];
    let run = |parts: &UpdateParts| {
        let workspace = &mut Workspace::new(&held.device, 0).unwrap();
        update(&held.device, &rule, &args, &held.shape, held.role, parts, workspace).unwrap_err()
    };
    assert!(run(&parts(DType::F32, &states[..1])).to_string().contains("1 states"));
    assert!(matches!(run(&parts(DType::BF16, &states)), Error::DType { got: DType::BF16, .. }));
    let reader = held.weights.read().unwrap();
    assert!(matches!(run(&parts(DType::F32, &states)), Error::Usage(_)));
    drop(reader);
    assert!(held.step(&args, None).is_ok());
}

#[test]
fn one_workspace_serves_matrices_up_to_its_size() {
    let (_, rule, lr, weight_decay) = rules().into_iter().find(|(name, ..)| *name == "muon").unwrap();
    let args = StepArgs { step: 1, lr, weight_decay, grad_scale: 1.0 };
    let step = |sizes: &[usize], of: &[usize]| -> Result<Vec<f32>> {
        let held = ParamState::new(&rule, sizes, Role::Matrix, DType::F32);
        held.set_gradient(|i| gradient(i, 1));
        let bytes = workspace_bytes(&held.device, &rule, &Shape::new(of).unwrap(), Role::Matrix);
        let state: Vec<Part> = held
            .state
            .iter()
            .enumerate()
            .map(|(index, flat)| Part { flat, range: 0..rule.state_len(index, &held.shape, held.role) })
            .collect();
        let n = held.shape.n_elems();
        let parts = UpdateParts {
            weights: Part { flat: &held.weights, range: 0..n },
            dtype: DType::F32,
            master: None,
            grads: Part { flat: &held.grads, range: 0..n },
            state: &state,
        };
        let before = held.device.arena().bytes();
        let workspace = &mut Workspace::new(&held.device, bytes)?;
        update(&held.device, &rule, &args, &held.shape, held.role, &parts, workspace)?;
        assert!(held.device.arena().bytes() - before <= bytes + 64, "nothing else is taken");
        Ok(held.master())
    };
    for sizes in [[40, 70], [70, 40], [33, 33]] {
        assert_eq!(step(&sizes, &[90, 90]).unwrap(), step(&sizes, &sizes).unwrap());
    }
    assert!(step(&[40, 70], &[20, 20]).unwrap_err().to_string().contains("a workspace of"));
}

#[test]
fn a_custom_rule_has_the_bits_of_the_built_in_one() {
    let built_in = Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    let custom = Rule::custom(AdamW { betas: [0.5, 0.5], eps: 1e-8 }).with_betas([0.9, 0.95]);
    assert_eq!(custom.betas(), built_in.betas());
    // Empty, less than a strip, more than a task of a thread.
    for n in [0, 1, 1500, 40_000] {
        for dtype in [DType::F32, DType::BF16] {
            let run = |rule| {
                let held = ParamState::new(rule, &[n], Role::Other, dtype);
                for step in 1..=3 {
                    held.set_gradient(|i| gradient(i, step));
                    let args = StepArgs { step, lr: 3e-3, weight_decay: 0.1, grad_scale: 0.3 };
                    held.step(&args, None).unwrap();
                }
                held.all_values()
            };
            assert_eq!(run(&custom), run(&built_in), "{n} {dtype}");
        }
    }
}

#[test]
fn a_custom_rule_of_whole_parameters_sees_their_sizes_and_states() {
    let rule = Rule::custom(Rows);
    let lens = |sizes: &[usize]| {
        [0, 1, 2].map(|index| rule.state_len(index, &Shape::new(sizes).unwrap(), Role::Other))
    };
    assert_eq!((lens(&[8, 4]), lens(&[5])), ([32, 8, 0], [5, 0, 0]));
    let held = ParamState::new(&rule, &[2, 3], Role::Other, DType::BF16);
    held.set_gradient(|i| if i < 3 { 4.0 } else { 0.0 });
    held.step(&StepArgs { step: 1, lr: 0.1, weight_decay: 0.0, grad_scale: 0.5 }, None).unwrap();
    // The scaled gradient is 2, its mean square 4, of which the state takes a tenth.
    let var = transfer::read_with(&held.state[1], 0..2, <[f32]>::to_vec).unwrap();
    assert_eq!(var, [0.4, 0.0]);
    let moved = 0.1 * 2.0 / (0.4f32.sqrt() + 1e-6);
    for (i, weight_after) in held.master().into_iter().enumerate() {
        let want = weight(i) - if i < 3 { moved } else { 0.0 };
        assert!((weight_after - want).abs() < 1e-6, "{i}: {weight_after}, not {want}");
    }
}
