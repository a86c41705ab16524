//! Adam and AdamW, as `torch.optim` takes their steps.

use super::{Elementwise, StepArgs, lerp};

/// The scalars of a step, computed in f64 and rounded once. `DECOUPLED` weight decay shrinks the weight (AdamW); the
/// other is a part of the gradient (Adam).
#[derive(Clone, Copy)]
pub struct Adam<const DECOUPLED: bool> {
    grad_scale: f32,
    weight_decay: f32,
    keep: f32,
    beta1_rest: f32,
    beta2: f32,
    beta2_rest: f32,
    root_correction2: f32,
    eps: f32,
    step_size: f32,
}

impl<const DECOUPLED: bool> Adam<DECOUPLED> {
    /// The scalars of this step, from the parameters by their names in `torch.optim`.
    pub fn new(beta1: f64, beta2: f64, eps: f64, args: &StepArgs) -> Self {
        let step = args.step as f64;
        Adam {
            grad_scale: args.grad_scale,
            weight_decay: args.weight_decay as f32,
            keep: args.keep(),
            beta1_rest: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            beta2_rest: (1.0 - beta2) as f32,
            root_correction2: (1.0 - libm::pow(beta2, step)).sqrt() as f32,
            eps: eps as f32,
            step_size: (args.lr / (1.0 - libm::pow(beta1, step))) as f32,
        }
    }
}

impl<const DECOUPLED: bool> Adam<DECOUPLED> {
    /// Its scalars: gradient scale, weight decay, what it keeps of a weight, 1 - beta1, beta2, 1 - beta2, the root of the
    /// second correction, eps, step size.
    pub fn scalars(&self) -> [f32; 9] {
        let Adam {
            grad_scale,
            weight_decay,
            keep,
            beta1_rest,
            beta2,
            beta2_rest,
            root_correction2,
            eps,
            step_size,
        } = *self;
        [grad_scale, weight_decay, keep, beta1_rest, beta2, beta2_rest, root_correction2, eps, step_size]
    }
}

impl<const DECOUPLED: bool> Elementwise for Adam<DECOUPLED> {
    #[inline(always)]
    fn strip(self, weights: &mut [f32], first: &mut [f32], second: &mut [f32], grad: &[f32]) {
        for (((weight, m), v), g) in weights.iter_mut().zip(first).zip(second).zip(grad) {
            let mut g = g * self.grad_scale;
            let mut kept = *weight;
            if DECOUPLED {
                kept *= self.keep;
            } else {
                g += self.weight_decay * *weight;
            }
            *m = lerp(*m, g, self.beta1_rest);
            *v = *v * self.beta2 + self.beta2_rest * g * g;
            let denominator = v.sqrt() / self.root_correction2 + self.eps;
            *weight = kept - self.step_size * *m / denominator;
        }
    }
}
