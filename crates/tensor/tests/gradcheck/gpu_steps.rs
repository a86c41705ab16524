//! Steps of optimizers on a GPU beside those on the CPU: all rules that have a form there.

use oarlock_tensor::cpu::{Isa, Par};
use oarlock_tensor::ops::optimizer::{
    AdafactorArgs, AdjustLr, Part, Role, Rule, StepArgs, UpdateParts, Workspace, update, workspace_bytes,
};
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, Device, FlatBuffer, Shape};

use crate::common::{assert_close, own_gpu, values};
use crate::gpu::assert_forms;

const LAMB: Rule = Rule::Lamb {
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-3,
    eps_inside_sqrt: true,
    bias_correction: true,
    max_coeff: 10.0,
    min_coeff: 0.01,
};
const ADAFACTOR: Rule = Rule::Adafactor(AdafactorArgs::TORCH);
const ADAFACTOR_OF_TRANSFORMERS: Rule = Rule::Adafactor(AdafactorArgs::TRANSFORMERS);
const MUON: Rule = Rule::Muon {
    momentum: 0.95,
    nesterov: true,
    ns_coefficients: [3.4445, -4.775, 2.0315],
    ns_steps: 5,
    eps: 1e-7,
    adjust_lr: AdjustLr::MatchRmsAdamW,
    adam_lr_ratio: 0.5,
    adam_beta1: 0.9,
    adam_beta2: 0.95,
    adam_eps: 1e-8,
};

/// The weights, the working copy and the states after three steps.
fn steps(device: &Device, rule: &Rule, (sizes, role): (&[usize], Role), dtype: DType) -> Vec<Vec<f64>> {
    let shape = Shape::new(sizes).unwrap();
    let n = shape.n_elems();
    let stored = |seed: u64, dtype: DType| {
        let flat = FlatBuffer::pooled(device, n * dtype.size(), "test").unwrap();
        let numbers: Vec<f32> = values(seed, n).iter().map(|x| *x as f32).collect();
        transfer::store(device, &numbers, &flat, 0, dtype).unwrap();
        flat
    };
    let (weights, grads) = (stored(1, dtype), stored(2, DType::F32));
    let master = (dtype != DType::F32).then(|| stored(1, DType::F32));
    let lens = (0..rule.state_names().len()).map(|i| rule.state_len(i, &shape, role)).collect::<Vec<_>>();
    let states: Vec<FlatBuffer> = lens
        .iter()
        .map(|&len| {
            let flat = FlatBuffer::pooled(device, 4 * len.max(1), "state").unwrap();
            transfer::store(device, &vec![0.0; len], &flat, 0, DType::F32).unwrap();
            flat
        })
        .collect();
    let part = |flat, len| Part { flat, range: 0..len };
    let state: Vec<Part<'_>> = states.iter().zip(&lens).map(|(flat, &len)| part(flat, len)).collect();
    let bytes = workspace_bytes(device, rule, &shape, role);
    for step in 1..=3 {
        let numbers: Vec<f32> = values(10 + step, n).iter().map(|x| *x as f32).collect();
        transfer::store(device, &numbers, &grads, 0, DType::F32).unwrap();
        let parts = UpdateParts {
            weights: part(&weights, n),
            dtype,
            master: master.as_ref().map(|master| part(master, n)),
            grads: part(&grads, n),
            state: &state,
        };
        let args = StepArgs { step, lr: 1e-2, weight_decay: 0.1, grad_scale: 0.5 };
        let mut workspace = Workspace::new(device, bytes).unwrap();
        update(device, rule, &args, &shape, role, &parts, &mut workspace).unwrap();
    }
    let read = |flat: &FlatBuffer, dtype, len: usize| {
        let mut numbers = vec![0f32; len];
        transfer::load(flat, 0, dtype, &mut numbers).unwrap();
        numbers.into_iter().map(f64::from).collect::<Vec<f64>>()
    };
    let mut all = vec![read(master.as_ref().unwrap_or(&weights), DType::F32, n), read(&weights, dtype, n)];
    all.extend(states.iter().zip(&lens).map(|(flat, &len)| read(flat, DType::F32, len)));
    all
}

#[test]
fn rules_of_whole_parameters_step_as_on_the_cpu() {
    let Some(gpu) = own_gpu() else { return };
    let cpu = Device::cpu(Isa::detect(), Par::solo());
    let cases: [(&Rule, &[usize], Role); 9] = [
        (&LAMB, &[70, 61], Role::Matrix),
        (&LAMB, &[33], Role::Other),
        (&ADAFACTOR, &[40, 33], Role::Matrix),
        (&ADAFACTOR, &[3, 20, 17], Role::Other),
        (&ADAFACTOR, &[4100], Role::Other),
        (&ADAFACTOR_OF_TRANSFORMERS, &[40, 33], Role::Matrix),
        (&MUON, &[24, 40], Role::Matrix),
        (&MUON, &[40, 24], Role::Matrix),
        (&MUON, &[50], Role::Other),
    ];
    for (rule, sizes, role) in cases {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let what = format!("{} of {sizes:?} in {dtype}", rule.name());
            let mut here = vec![];
            assert_forms(&gpu, &what, &[rule.name()], || here = steps(&gpu, rule, (sizes, role), dtype));
            let there = steps(&cpu, rule, (sizes, role), dtype);
            // The working copy is the master rounded; everything else is f32.
            let names = ["weights", "working copy", "state 0", "state 1", "state 2"];
            for (i, (got, want)) in here.iter().zip(&there).enumerate() {
                let of = if i == 1 { dtype } else { DType::F32 };
                assert_close(got, want, of, 2.0, &format!("{what}, {}", names[i]));
            }
            assert_eq!(here, steps(&gpu, rule, (sizes, role), dtype), "{what}: a second run");
        }
    }
}
