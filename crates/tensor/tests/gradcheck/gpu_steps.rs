//! Steps of optimizers on a GPU beside those on the CPU: all rules that have a form there.

use oarlock_tensor::cpu::{Isa, Par};
use oarlock_tensor::ops::optimizer::{
    AdafactorArgs, AdjustLr, Part, Role, Rule, StepArgs, Target, UpdateParts, Workspace, update, update_all,
    workspace_bytes, workspace_bytes_of_all,
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

/// The parameters of a decoder with so many layers in the shape of Qwen2.5, in flat buffers as an engine has them.
struct Params {
    params: Vec<(Shape, Role)>,
    /// Where each begins, and at last the end.
    starts: Vec<usize>,
    flats: [FlatBuffer; 3],
    states: Vec<(FlatBuffer, Vec<usize>)>,
}

impl Params {
    fn new(gpu: &Device, rule: &Rule, layers: usize) -> Params {
        let of = |role, sizes: &[usize]| (Shape::new(sizes).unwrap(), role);
        let matrices = [[8, 8], [4, 8], [4, 8], [8, 8], [12, 8], [12, 8], [8, 12]];
        let layer = matrices.iter().map(|sizes| of(Role::Matrix, sizes));
        let layer = layer.chain([8, 4, 4, 8, 8].iter().map(|n| of(Role::Other, &[*n])));
        let layers = layer.cycle().take(12 * layers);
        let ends = [of(Role::Embedding, &[1100, 8]), of(Role::Other, &[8])];
        let params: Vec<(Shape, Role)> = layers.chain(ends).collect();
        let starts_of = |len: &dyn Fn(&(Shape, Role)) -> usize| {
            let mut starts = vec![0];
            for param in &params {
                starts.push(starts[starts.len() - 1] + len(param).next_multiple_of(16));
            }
            starts
        };
        let starts = starts_of(&|(shape, _)| shape.n_elems());
        let stored = |seed: Option<u64>, dtype: DType, n: usize| {
            let flat = FlatBuffer::pooled(gpu, n.max(1) * dtype.size(), "test").unwrap();
            let numbers =
                seed.map_or(vec![0.0; n], |seed| values(seed, n).iter().map(|x| *x as f32).collect());
            transfer::store(gpu, &numbers, &flat, 0, dtype).unwrap();
            flat
        };
        let n = starts[params.len()];
        let flats = [(1, DType::F32), (1, DType::BF16), (2, DType::F32)]
            .map(|(seed, dtype)| stored(Some(seed), dtype, n));
        let state = |index: usize| {
            let starts = starts_of(&|(shape, role)| rule.state_len(index, shape, *role));
            (stored(None, DType::F32, starts[params.len()]), starts)
        };
        let states = (0..rule.state_names().len()).map(state).collect();
        Params { params, starts, flats, states }
    }

    /// A step, together or one after the other; the kernels and products that it launches.
    fn step(&self, gpu: &Device, rule: &Rule, together: bool) -> u64 {
        let args = StepArgs { step: 1, lr: 1e-2, weight_decay: 0.1, grad_scale: 0.5 };
        let Params { params, starts, flats: [master, weights, grads], states } = self;
        let state = |(index, (shape, role)): (usize, &(Shape, Role))| -> Vec<Part<'_>> {
            let of = states.iter().enumerate().map(|(state, (flat, starts))| {
                let len = rule.state_len(state, shape, *role);
                Part { flat, range: starts[index]..starts[index] + len }
            });
            of.collect()
        };
        let state: Vec<Vec<Part<'_>>> = params.iter().enumerate().map(state).collect();
        let target = |(index, (shape, role)): (usize, &(Shape, Role))| {
            let range = starts[index]..starts[index] + shape.n_elems();
            let part = |flat| Part { flat, range: range.clone() };
            let parts = UpdateParts {
                weights: part(weights),
                dtype: DType::BF16,
                master: Some(part(master)),
                grads: part(grads),
                state: &state[index],
            };
            Target { shape: *shape, role: *role, parts }
        };
        let targets: Vec<Target<'_>> = params.iter().enumerate().map(target).collect();
        let bytes = workspace_bytes_of_all(gpu, rule, params.iter().copied());
        let workspace = &mut Workspace::new(gpu, bytes).unwrap();
        let before = gpu.gpu_counts().unwrap().launches;
        if together {
            update_all(gpu, rule, &args, &targets, workspace).unwrap();
        } else {
            for Target { shape, role, parts } in &targets {
                update(gpu, rule, &args, shape, *role, parts, workspace).unwrap();
            }
        }
        gpu.gpu_counts().unwrap().launches - before
    }

    /// The bits of everything.
    fn bits(&self) -> Vec<Vec<u32>> {
        let [master, weights, _] = &self.flats;
        let states = self.states.iter().map(|(flat, starts)| (flat, DType::F32, *starts.last().unwrap()));
        let n = *self.starts.last().unwrap();
        let all = [(master, DType::F32, n), (weights, DType::BF16, n)].into_iter().chain(states);
        all.map(|(flat, dtype, n)| {
            let mut numbers = vec![0f32; n];
            transfer::load(flat, 0, dtype, &mut numbers).unwrap();
            numbers.into_iter().map(f32::to_bits).collect()
        })
        .collect()
    }
}

/// With the parameters of Qwen2.5 0.5B a step took 1,160 launches of Lamb, 1,790 of Adafactor and 5,040 of Muon when each
/// parameter had its own.
#[test]
fn many_parameters_are_one_step_of_few_launches() {
    let Some(gpu) = own_gpu() else { return };
    let adamw = Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    // Tables of 64 of the 290 parameters; of Muon the matrices of each of four shapes, and all others by AdamW.
    let cases = [
        (&adamw, 5, 1),
        (&LAMB, 5 * 3, 3),
        (&ADAFACTOR, 5 * 7, 7),
        (&ADAFACTOR_OF_TRANSFORMERS, 5 * 7, 7),
        (&MUON, 4 * 30 + 2, 30),
    ];
    for (rule, launches, of_one) in cases {
        let name = rule.name();
        assert_eq!(Params::new(&gpu, rule, 24).step(&gpu, rule, true), launches, "{name}");
        let [together, alone] = [true, false].map(|together| {
            let params = Params::new(&gpu, rule, 3);
            (params.step(&gpu, rule, together), params.bits())
        });
        assert!(alone.0 <= of_one * 38 && together.0 * 3 < alone.0, "{name}: {together:?}, {alone:?}");
        assert!(together.1 == alone.1, "{name}: other bits");
    }
    assert_eq!(gpu.staged_ops(), Vec::<&str>::new());
}
