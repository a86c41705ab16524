//! Activation checkpointing: the same bits as without it, for less memory.

use std::sync::Arc;
use std::time::Duration;

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::{self, WeightLayout};
use oarlock_tensor::{DType, Device, Par, Param, Result, Tape, Tensor};

use crate::common::{Array, array, f64s, grad_of, own_gpu, settle, tensor};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Keep {
    All,
    Input,
    /// The input, and when it runs again the input of its second half.
    InputTwice,
    /// The input; the last product is not run again, and its input is made by what runs again before it.
    InputOfFirstHalf,
}

const ALL: [Keep; 4] = [Keep::All, Keep::Input, Keep::InputTwice, Keep::InputOfFirstHalf];
const DIM: usize = 24;

fn weights() -> Vec<Array> {
    vec![array(1, &[DIM]), array(2, &[40, DIM]), array(3, &[40]), array(4, &[DIM, 40])]
}

fn first_half(x: &Tensor, p: &[Param]) -> Result<Tensor> {
    let h = ops::rms_norm(x, &p[0], 1e-5)?;
    ops::linear(&h, &p[1], Some(&p[2]), WeightLayout::OutIn)?.scale(0.1)?.gelu()?.dropout(0.25, 7, 3)
}

fn second_half(h: &Tensor, p: &[Param]) -> Result<Tensor> {
    ops::linear(&h.silu()?, &p[3], None, WeightLayout::OutIn)
}

fn block(x: &Tensor, p: &Arc<[Param]>, keep: Keep) -> Result<Tensor> {
    let p = p.clone();
    match keep {
        Keep::All => x.add(&second_half(&first_half(x, &p)?, &p)?),
        Keep::Input => ops::checkpoint(x, true, Arc::new(move |x| block(x, &p, Keep::All))),
        Keep::InputTwice => {
            let outer = move |x: &Tensor| {
                let p = p.clone();
                let h = first_half(x, &p)?;
                x.add(&ops::checkpoint(&h, true, Arc::new(move |h| second_half(h, &p)))?)
            };
            ops::checkpoint(x, true, Arc::new(outer))
        }
        Keep::InputOfFirstHalf => {
            let first = p.clone();
            let h = ops::checkpoint_without_output(x, true, Arc::new(move |x| first_half(x, &first)))?;
            x.add(&second_half(&h, &p)?)
        }
    }
}

#[derive(Debug, PartialEq)]
struct Run {
    y: Vec<f64>,
    dx: Option<Vec<f64>>,
    d_params: Vec<Vec<f64>>,
}

/// x is used before the block, by it and after it, so its gradient is a sum that the block takes over and gives on;
/// the parameters are used twice.
fn run(device: &Device, dtype: DType, keep: Keep, leaf: bool) -> Run {
    let (params, home) = settle(&weights(), dtype, device, true);
    let params: Arc<[Param]> = params.into();
    let tape = Tape::new();
    let x = tensor(&array(9, &[3, 7, DIM]), dtype, device);
    let x = if leaf { tape.leaf(&x) } else { tape.input(&x) };
    let before = x.scale(0.3).unwrap();
    let inside = block(&x, &params, keep).unwrap();
    let sum = before.add(&inside).unwrap().add(&x.square().unwrap()).unwrap();
    let y = block(&sum, &params, keep).unwrap();
    let gradients = tape.backward(&y, 0.5).unwrap();
    Run {
        y: f64s(&y),
        dx: gradients.of(&x).map(f64s),
        d_params: (0..params.len()).map(|index| grad_of(&home, index)).collect(),
    }
}

#[test]
fn gradients_are_the_same_bits() {
    for isa in Isa::available() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let want = run(&Device::cpu(isa, Par::solo()), dtype, Keep::All, true);
            assert!(want.dx.is_some());
            for threads in [1, 2, 7] {
                let device = Device::cpu(isa, Par::threads(threads).unwrap());
                for keep in ALL {
                    let got = run(&device, dtype, keep, true);
                    assert!(got == want, "{}, {dtype}, {keep:?}", device.describe());
                    let (again, no_leaf) = (&got.d_params, run(&device, dtype, keep, false));
                    assert!(no_leaf.dx.is_none() && no_leaf.d_params == *again, "{dtype}, {keep:?}");
                }
            }
        }
    }
}

#[test]
fn a_step_needs_less_memory_and_no_fresh_memory_later() {
    let step = |device: &Device, params: &Arc<[Param]>, keep| {
        let tape = Tape::new();
        let mut x = tape.leaf(&Tensor::zeros([512, DIM], DType::F32, device).unwrap());
        for _ in 0..24 {
            x = block(&x, params, keep).unwrap();
        }
        tape.backward(&x, 1.0).unwrap();
    };
    let peaks = ALL.map(|keep| {
        let device = Device::cpu(Isa::detect(), Par::solo());
        let (params, _home) = settle(&weights(), DType::F32, &device, true);
        let params = params.into();
        step(&device, &params, keep);
        let fresh = device.arena().n_fresh();
        step(&device, &params, keep);
        assert_eq!(device.arena().n_fresh(), fresh, "{keep:?}");
        assert_eq!(device.profile().recomputing() > Duration::ZERO, keep != Keep::All);
        let of = |name| device.arena().usage().iter().find(|u| u.0 == name).map_or(0, |u| u.1.peak_bytes);
        of("activation") + of("replayed") + of("statistics")
    });
    assert!(peaks[1..].iter().all(|peak| 2 * peak < peaks[0]), "{peaks:?}");
}

#[test]
fn what_trains_nothing_is_not_run_again() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1.0f32, -2.0], [2], &device).unwrap();
    let square = || Arc::new(|x: &Tensor| x.square());
    // Off the tape, and on it without a gradient to be had.
    assert!(ops::checkpoint(&x, true, square()).unwrap().tape().is_none());
    let tape = Tape::new();
    let y = ops::checkpoint(&tape.input(&x), false, square()).unwrap();
    let nothing = "backward: nothing that the loss depends on is trained";
    assert_eq!(tape.backward(&y, 1.0).err().unwrap().to_string(), nothing);
    // A forward pass that leaves its input alone or gives it back; what else came to the input stays.
    let constant = x.clone();
    let tape = Tape::new();
    let leaf = tape.leaf(&x);
    let y = ops::checkpoint(&leaf, false, Arc::new(move |_: &Tensor| Ok(constant.clone()))).unwrap();
    let same = ops::checkpoint(&leaf, false, Arc::new(|x: &Tensor| Ok(x.clone()))).unwrap();
    let sum = y.add(&same).unwrap().add(&leaf.scale(4.0).unwrap()).unwrap();
    assert_eq!(f64s(tape.backward(&sum, 1.0).unwrap().of(&leaf).unwrap()), [5.0, 5.0]);
}

#[test]
fn misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1.0f32, -2.0], [2], &device).unwrap();
    let tape = Tape::new();
    let (leaf, other) = (tape.leaf(&x), tape.leaf(&x));
    let captures = ops::checkpoint(&leaf, false, Arc::new(move |x: &Tensor| x.mul(&other)));
    let text = captures.unwrap_err().to_string();
    assert!(text.starts_with("checkpoint: its forward pass takes a tensor of the tape beside"), "{text}");

    let text = |tape: &Tape, grad: &Tensor| {
        let y = tape.leaf(&x).square().unwrap();
        tape.backward_from(y, grad.clone()).err().map(|e| e.to_string())
    };
    let short = Tensor::from_slice(&[1.0f32], [1], &device).unwrap();
    let wrong = "backward_from: expected a gradient like Tensor([2], f32), got Tensor([1], f32)";
    assert_eq!(text(&Tape::new(), &short).as_deref(), Some(wrong));
    let promised = "backward_from: the tape was promised the seed 0.5; give `backward` that seed";
    assert_eq!(text(&Tape::with_seed(0.5), &x).as_deref(), Some(promised));

    let tape = Tape::new();
    let leaf = tape.leaf(&x);
    let gradients = tape.backward_from(leaf.square().unwrap(), tape.input(&x)).unwrap();
    assert_eq!(f64s(gradients.of(&leaf).unwrap()), [2.0, 8.0]);
}

/// A chain of blocks on a device, of which each keeps its input; the gradients of its input and weights.
fn chain(device: &Device, is_away: bool) -> (Vec<f32>, usize) {
    let tape = Tape::new();
    let x = tape.leaf(&tensor(&array(5, &[64, DIM]), DType::F32, device));
    let mut h = x.clone();
    for at in 0..8 {
        let weight = tensor(&array(6 + at, &[64, DIM]), DType::F32, device);
        let forward = move |x: &Tensor| x.mul(&weight.detach())?.gelu()?.add(x);
        let checkpoint = if is_away { ops::offloaded_checkpoint } else { ops::checkpoint };
        h = checkpoint(&h, true, Arc::new(forward)).unwrap();
    }
    let in_use = device.arena().bytes() - device.arena().free().iter().sum::<usize>();
    let loss = h.square().unwrap().sum_all().unwrap();
    drop(h);
    let gradients = tape.backward(&loss, 1.0).unwrap();
    (gradients.of(&x).unwrap().to_vec().unwrap(), in_use)
}

#[test]
fn inputs_that_wait_beside_a_gpu_come_back_as_they_were() {
    let Some(device) = own_gpu() else { return };
    let ((there, in_use), (away, less)) = (chain(&device, false), chain(&device, true));
    assert_eq!(there, away);
    // Those of all blocks but the first, whose input the caller holds.
    assert_eq!(in_use - less, 7 * 64 * DIM * 4);
    let beside = device.pinned().unwrap();
    assert_eq!(beside.bytes(), beside.free().iter().sum::<usize>(), "they are given back");
    let cpu = Device::cpu(Isa::detect(), Par::solo());
    assert_eq!(chain(&cpu, true), chain(&cpu, false), "a CPU has them in its memory anyway");
}
