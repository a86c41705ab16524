//! The kernels of the optimizers. Each reads and writes master weights, state and gradient once, and writes the
//! 16-bit working copy on the way.

pub mod adafactor;
pub mod adagrad;
pub mod adam;
pub mod custom;
pub mod eight_bit;
pub mod lamb;
pub mod lion;
pub mod low_rank;
pub mod muon;
pub mod one_bit;
pub mod sgd;

use crate::Cpu;
use crate::dtype::{Float, bf16, f16};
use crate::instances::instances;
use crate::isa::multiversion;
use crate::pieces::{TASK_ELEMS, cut, for_pieces};

/// Elements that are updated before they are rounded into the working copy: small enough for the first cache.
const STRIP: usize = 1024;

/// The most states that a rule keeps.
pub const MAX_STATES: usize = 8;

/// What changes from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepArgs {
    /// The number of this step; the first is 1.
    pub step: u64,
    /// Learning rate.
    pub lr: f64,
    /// Weight decay; 0 where it does not apply.
    pub weight_decay: f64,
    /// Multiplies each gradient first: clipping, loss scale, averaging.
    pub grad_scale: f32,
}

impl StepArgs {
    /// What decoupled weight decay leaves of a weight.
    pub fn keep(&self) -> f32 {
        (1.0 - self.lr * self.weight_decay) as f32
    }
}

/// The elements that a step updates: of one length, except that unused state is empty and factored state shorter.
pub struct Buffers<'a, T> {
    /// Master weights.
    pub weights: &'a mut [f32],
    /// The rule's states in the order of their names.
    pub state: [&'a mut [f32]; MAX_STATES],
    /// Gradients.
    pub grad: &'a [f32],
    /// Receives the new weights rounded; absent where the master weights are the working copy.
    pub working: Option<&'a mut [T]>,
}

/// A rule that updates each element by itself, with at most two states.
pub trait Elementwise: Copy + Send + Sync + 'static {
    /// Updates one run of elements; unused states are empty.
    fn strip(self, weights: &mut [f32], first: &mut [f32], second: &mut [f32], grad: &[f32]);
}

instances! {
    /// One step of a rule on all elements; the first two states are its own.
    pub fn step[
        R: Elementwise, T: Float;
        [adam::Adam<true>, f32] [adam::Adam<true>, bf16] [adam::Adam<true>, f16]
        [adam::Adam<false>, f32] [adam::Adam<false>, bf16] [adam::Adam<false>, f16]
        [sgd::Sgd, f32] [sgd::Sgd, bf16] [sgd::Sgd, f16]
        [adagrad::Adagrad, f32] [adagrad::Adagrad, bf16] [adagrad::Adagrad, f16]
        [lion::Lion, f32] [lion::Lion, bf16] [lion::Lion, f16]
    ](cpu: &Cpu, rule: R, buffers: Buffers<'_, T>) {
        run(cpu, rule, buffers);
    }
}

/// Runs a rule over all elements.
fn run<R: Elementwise, T: Float>(cpu: &Cpu, rule: R, buffers: Buffers<'_, T>) {
    let Buffers { weights, state: [first, second, ..], grad, working } = buffers;
    let n = grad.len();
    assert!(weights.len() == n && working.as_ref().is_none_or(|w| w.len() == n), "optimizer: lengths");
    assert!([first.len(), second.len()].iter().all(|len| [0, n].contains(len)), "optimizer: states");
    let cut_all = (
        cut(weights, TASK_ELEMS),
        cut(first, TASK_ELEMS),
        cut(second, TASK_ELEMS),
        working.map(|w| cut(w, TASK_ELEMS)),
    );
    for_pieces(&cpu.par, n.div_ceil(TASK_ELEMS), cut_all, |i, (weights, first, second, working)| {
        let grad = &grad[i * TASK_ELEMS..][..weights.len()];
        match working {
            None => strip(cpu.isa, rule, weights, first, second, grad),
            Some(working) => rounded_strips(cpu.isa, rule, weights, first, second, grad, working),
        }
    });
}

multiversion! {
    fn strip[R: Elementwise](
        rule: R, weights: &mut [f32], first: &mut [f32], second: &mut [f32], grad: &[f32],
    ) {
        rule.strip(weights, first, second, grad);
    }
}

multiversion! {
    fn rounded_strips[R: Elementwise, T: Float](
        rule: R, weights: &mut [f32], first: &mut [f32], second: &mut [f32], grad: &[f32], working: &mut [T],
    ) {
        for (i, weights) in weights.chunks_mut(STRIP).enumerate() {
            let (from, to) = (i * STRIP, i * STRIP + weights.len());
            let (first, second) = (part(first, from, to), part(second, from, to));
            rule.strip(weights, first, second, &grad[from..to]);
            for (rounded, weight) in working[from..to].iter_mut().zip(weights) {
                *rounded = T::from_f32(*weight);
            }
        }
    }
}

/// The elements `from..to`; none of an unused state.
#[inline(always)]
fn part(state: &mut [f32], from: usize, to: usize) -> &mut [f32] {
    if state.is_empty() { state } else { &mut state[from..to] }
}

/// The states of a rule that keeps these.
pub fn states<const N: usize>(kept: [&mut [f32]; N]) -> [&mut [f32]; MAX_STATES] {
    let mut kept = kept.into_iter();
    [(); MAX_STATES].map(|()| kept.next().unwrap_or_default())
}

/// `from + weight * (to - from)`, in the one of two forms that torch's `lerp` takes for this weight.
#[inline(always)]
fn lerp(from: f32, to: f32, weight: f32) -> f32 {
    if weight < 0.5 { from + weight * (to - from) } else { to - (to - from) * (1.0 - weight) }
}
