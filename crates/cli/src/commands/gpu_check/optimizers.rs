//! Steps of optimizers on flat buffers, and the same steps in f64.

use oarlock_reference::optimizer::{self as reference, Adafactor, Args, Lamb, Muon, Weight};
use oarlock_tensor::ops::optimizer::{
    AdafactorArgs, AdjustLr, Needs, Part, Role, Rule, StepArgs, UpdateParts, Workspace, update,
    workspace_bytes,
};
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, FlatBuffer, Result, Shape};

use super::place::{Place, Values, normal};

/// Of a weight with one dim; all others are matrices.
const OF_VECTOR: &str = "adafactor, a vector";

/// The rules that have a form for a GPU, by name.
pub(super) fn rules() -> [(&'static str, Rule); 11] {
    let lamb = Rule::Lamb {
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-3,
        eps_inside_sqrt: false,
        bias_correction: true,
        max_coeff: 10.0,
        min_coeff: 0.01,
    };
    let muon = Rule::Muon {
        momentum: 0.95,
        nesterov: true,
        ns_coefficients: [3.4445, -4.775, 2.0315],
        ns_steps: 5,
        eps: 1e-7,
        adjust_lr: AdjustLr::MatchRmsAdamW,
        adam_lr_ratio: 1.0,
        adam_beta1: 0.9,
        adam_beta2: 0.95,
        adam_eps: 1e-8,
    };
    [
        ("adamw", Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }),
        ("adam", Rule::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8 }),
        ("sgd", Rule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false }),
        ("sgd with momentum", Rule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: true }),
        ("adagrad", Rule::Adagrad { lr_decay: 0.0, initial_accumulator_value: 0.1, eps: 1e-3 }),
        ("lion", Rule::Lion { beta1: 0.875, beta2: 0.96875 }),
        ("lamb", lamb),
        ("adafactor", Rule::Adafactor(AdafactorArgs::TORCH)),
        (OF_VECTOR, Rule::Adafactor(AdafactorArgs::TORCH)),
        ("adafactor of transformers", Rule::Adafactor(AdafactorArgs::TRANSFORMERS)),
        ("muon", muon),
    ]
}

/// Of the weight: no multiples of what kernels take at a time.
fn sizes(name: &str, quick: bool) -> Vec<usize> {
    let [rows, cols] = if quick { [10, 33] } else { [300, 334] };
    if name == OF_VECTOR { vec![rows * cols] } else { vec![rows, cols] }
}

/// How often a weight moves.
const N_STEPS: u64 = 3;

/// The gradients of a step: odd multiples of 1/128, so that sums of them by the factors of Lion never are near zero, where
/// their sign would be that of a rounding.
fn gradients(step: u64, n: usize) -> Vec<f32> {
    normal(1 + step, n).into_iter().map(|x| ((x * 64.0).floor() + 0.5) / 64.0).collect()
}

/// A step; gradients are scaled, as after clipping. The decay is a power of two: where Adam adds it to a gradient of about the
/// same size, no rounding is left of the difference, which would be divided by its own root.
fn step_args(step: u64) -> StepArgs {
    StepArgs { step, lr: 1e-2, weight_decay: 0.125, grad_scale: 0.5 }
}

/// Three steps: weights in f32, states, and the working copy where the dtype is a short one. f32 weights stand for their
/// own working copy.
pub(super) fn run((name, rule): &(&str, Rule), place: &Place<'_>, quick: bool) -> Result<Values> {
    let (device, role) = (place.device, Role::Matrix);
    let shape = Shape::new(&sizes(name, quick))?;
    let n = shape.n_elems();
    let initial = place.values(1, n, 1.0);
    let zeros = || place.flat(DType::F32, &vec![0.0; n]);
    let (weights, grads) = (place.flat(place.dtype, &initial)?, zeros()?);
    let master = (place.dtype != DType::F32).then(|| place.flat(DType::F32, &initial)).transpose()?;
    let lens: Vec<usize> = (0..rule.state_names().len())
        .map(|i| if rule.needs() == Needs::Elementwise { n } else { rule.state_len(i, &shape, role) })
        .collect();
    let states = lens.iter().map(|_| zeros()).collect::<Result<Vec<_>>>()?;
    let mut workspace = Workspace::new(device, workspace_bytes(device, rule, &shape, role))?;
    fn whole(flat: &FlatBuffer, n: usize) -> Part<'_> {
        Part { flat, range: 0..n }
    }
    for step in 1..=N_STEPS {
        transfer::store(device, &gradients(step, n), &grads, 0, DType::F32)?;
        let parts = UpdateParts {
            weights: whole(&weights, n),
            dtype: place.dtype,
            master: master.as_ref().map(|master| whole(master, n)),
            grads: whole(&grads, n),
            state: &states.iter().zip(&lens).map(|(state, &len)| whole(state, len)).collect::<Vec<_>>(),
        };
        update(device, rule, &step_args(step), &shape, role, &parts, &mut workspace)?;
    }
    let read = |flat: &FlatBuffer, dtype: DType, len: usize| {
        let mut values = vec![0.0; len];
        transfer::load(flat, 0, dtype, &mut values).map(|()| values)
    };
    let exact = read(master.as_ref().unwrap_or(&weights), DType::F32, n)?;
    let mut values = vec![("weights".to_owned(), exact)];
    for (i, (state, &len)) in states.iter().zip(&lens).enumerate() {
        values.push((format!("state {i}"), read(state, DType::F32, len)?));
    }
    values.push(("working copy".to_owned(), read(&weights, place.dtype, n)?));
    Ok(values)
}

/// The same in f64.
pub(super) fn want((name, rule): &(&str, Rule), place: &Place<'_>, quick: bool) -> Vec<Vec<f64>> {
    let sizes = sizes(name, quick);
    let n = sizes.iter().product();
    let f64s = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
    let mut weight = Weight::new(sizes, f64s(place.values(1, n, 1.0)));
    for at in 1..=N_STEPS {
        let StepArgs { step, lr, weight_decay, grad_scale } = step_args(at);
        let args = Args { step, lr, weight_decay, grad_scale: f64::from(grad_scale) };
        reference::step(
            &of_reference(rule, &args, &weight.sizes),
            &args,
            &mut weight,
            &f64s(gradients(at, n)),
        );
    }
    let states = (0..rule.state_names().len()).map(|i| weight.states[i].clone());
    [weight.values.clone()].into_iter().chain(states).chain([weight.values.clone()]).collect()
}

/// The same rule for the reference, at a step of a weight of these sizes.
fn of_reference(rule: &Rule, args: &Args, sizes: &[usize]) -> reference::Rule {
    match *rule {
        Rule::AdamW { beta1, beta2, eps } => reference::Rule::AdamW { beta1, beta2, eps },
        Rule::Adam { beta1, beta2, eps } => reference::Rule::Adam { beta1, beta2, eps },
        Rule::Sgd { momentum, dampening, nesterov } => reference::Rule::Sgd { momentum, dampening, nesterov },
        Rule::Adagrad { lr_decay, initial_accumulator_value, eps } => {
            reference::Rule::Adagrad { lr_decay, initial_accumulator_value, eps }
        }
        Rule::Lion { beta1, beta2 } => reference::Rule::Lion { beta1, beta2 },
        Rule::Lamb { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff } => {
            let lamb = Lamb { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff };
            reference::Rule::Lamb(lamb)
        }
        Rule::Adafactor(adafactor) => {
            let AdafactorArgs { beta2_decay, eps1, eps2, d, relative } = adafactor;
            let (share, floor) = (libm::pow(args.step as f64, beta2_decay), adafactor.floor());
            let rate = adafactor.rate(args.lr, args.step);
            reference::Rule::Adafactor(Adafactor { share, eps: [eps1, eps2], floor, d, relative, rate })
        }
        Rule::Muon { momentum, nesterov, ns_coefficients, ns_steps, eps, adjust_lr, .. } => {
            let [rows, cols] = [sizes[0], *sizes.last().unwrap_or(&1)].map(|n| n as f64);
            let adjusted = match adjust_lr {
                AdjustLr::Original => (rows / cols).max(1.0).sqrt(),
                AdjustLr::MatchRmsAdamW => 0.2 * rows.max(cols).sqrt(),
            };
            reference::Rule::Muon(Muon { momentum, nesterov, ns_coefficients, ns_steps, eps, adjusted })
        }
        Rule::LowRank(_) | Rule::OneBit(_) | Rule::EightBit(_) | Rule::Custom(_) => {
            unreachable!("they have no form for a GPU")
        }
    }
}
