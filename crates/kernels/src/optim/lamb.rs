//! Lamb: Adam's direction, its length set by the ratio of the norms of the parameter and of the direction.

use super::{Buffers, Elementwise, StepArgs, run, states};
use crate::Cpu;
use crate::dtype::Float;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::pieces::{TASK_ELEMS, cut, for_pieces};
use crate::sums::{NORM_BLOCK, squares, tree_sum};

/// The parameters of Lamb, as DeepSpeed's FusedLamb names them.
#[derive(Clone, Copy, Debug)]
pub struct LambArgs {
    /// The decay of the first moment.
    pub beta1: f64,
    /// The decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Whether it is added below the root instead.
    pub eps_inside_sqrt: bool,
    /// Whether the step makes up for moments that begin at 0.
    pub bias_correction: bool,
    /// The largest ratio of the norms.
    pub max_coeff: f64,
    /// The smallest ratio of the norms.
    pub min_coeff: f64,
}

/// The scalars of a step.
#[derive(Clone, Copy)]
struct Factors {
    grad_scale: f32,
    weight_decay: f32,
    beta1: f32,
    beta1_rest: f32,
    beta2: f32,
    beta2_rest: f32,
    eps: f32,
    eps_inside_sqrt: bool,
}

impl Factors {
    #[inline(always)]
    fn direction(self, weight: f32, m: f32, v: f32) -> f32 {
        let root = if self.eps_inside_sqrt { (v + self.eps).sqrt() } else { v.sqrt() + self.eps };
        m / root + self.weight_decay * weight
    }
}

/// The second pass: the step along the direction.
#[derive(Clone, Copy)]
struct Apply {
    factors: Factors,
    length: f32,
}

impl Elementwise for Apply {
    #[inline(always)]
    fn strip(self, weights: &mut [f32], first: &mut [f32], second: &mut [f32], _: &[f32]) {
        for ((weight, m), v) in weights.iter_mut().zip(first).zip(second) {
            *weight -= self.length * self.factors.direction(*weight, *m, *v);
        }
    }
}

/// The f64 elements of scratch that a step on `n` elements needs.
pub fn scratch_len(n: usize) -> usize {
    2 * n.div_ceil(NORM_BLOCK)
}

instances! {
    /// One step on one whole parameter.
    pub fn step[T: Float](
        cpu: &Cpu,
        lamb: &LambArgs,
        args: &StepArgs,
        buffers: Buffers<'_, T>,
        scratch: &mut [f64],
    ) {
        let Buffers { weights, state: [m, v, ..], grad, working } = buffers;
        let n_blocks = grad.len().div_ceil(NORM_BLOCK);
        let factors = Factors {
            grad_scale: args.grad_scale,
            weight_decay: args.weight_decay as f32,
            beta1: lamb.beta1 as f32,
            beta1_rest: (1.0 - lamb.beta1) as f32,
            beta2: lamb.beta2 as f32,
            beta2_rest: (1.0 - lamb.beta2) as f32,
            eps: lamb.eps as f32,
            eps_inside_sqrt: lamb.eps_inside_sqrt,
        };
        let (of_weights, rest) = scratch.split_at_mut(n_blocks);
        let of_direction = &mut rest[..n_blocks];
        let task_blocks = TASK_ELEMS / NORM_BLOCK;
        let outputs = (
            cut(m, TASK_ELEMS),
            cut(v, TASK_ELEMS),
            cut(of_weights, task_blocks),
            cut(of_direction, task_blocks),
        );
        for_pieces(&cpu.par, n_blocks.div_ceil(task_blocks), outputs, |i, (m, v, of_weights, of_direction)| {
            let elements = i * TASK_ELEMS..i * TASK_ELEMS + m.len();
            moments(
                cpu.isa,
                factors,
                &weights[elements.clone()],
                m,
                v,
                &grad[elements],
                of_weights,
                of_direction,
            );
        });
        let (weight_norm, direction_norm) = (tree_sum(of_weights).sqrt(), tree_sum(of_direction).sqrt());
        let coefficient = if weight_norm != 0.0 && direction_norm != 0.0 {
            (weight_norm / direction_norm).min(lamb.max_coeff).max(lamb.min_coeff)
        } else {
            1.0
        };
        let step = args.step as f64;
        let correction = if lamb.bias_correction {
            (1.0 - libm::pow(lamb.beta2, step)).sqrt() / (1.0 - libm::pow(lamb.beta1, step))
        } else {
            1.0
        };
        let length = (args.lr * correction * coefficient) as f32;
        run(cpu, Apply { factors, length }, Buffers { weights, state: states([m, v]), grad, working });
    }
}

multiversion! {
    /// The new moments, and of each block the squared norms of its weights and of its direction.
    fn moments(
        f: Factors, weights: &[f32], m: &mut [f32], v: &mut [f32], grad: &[f32], of_weights: &mut [f64],
        of_direction: &mut [f64],
    ) {
        let mut direction = [0.0; NORM_BLOCK];
        let state = m.chunks_mut(NORM_BLOCK).zip(v.chunks_mut(NORM_BLOCK));
        let inputs = weights.chunks(NORM_BLOCK).zip(grad.chunks(NORM_BLOCK));
        for (((m, v), (weights, grad)), sums) in state.zip(inputs).zip(of_weights.iter_mut().zip(of_direction)) {
            let direction = &mut direction[..weights.len()];
            for ((((m, v), weight), g), u) in m.iter_mut().zip(v).zip(weights).zip(grad).zip(direction.iter_mut()) {
                let g = g * f.grad_scale;
                *m = f.beta1 * *m + f.beta1_rest * g;
                *v = f.beta2 * *v + f.beta2_rest * g * g;
                *u = f.direction(*weight, *m, *v);
            }
            *sums.0 = squares(weights);
            *sums.1 = squares(direction);
        }
    }
}
