//! Lion, as DeepSpeed's: the sign of a blend of momentum and gradient, decoupled weight decay.

use super::{Elementwise, StepArgs};

/// The scalars of a step.
#[derive(Clone, Copy)]
pub struct Lion {
    grad_scale: f32,
    keep: f32,
    lr: f32,
    beta1: f32,
    beta1_rest: f32,
    beta2: f32,
    beta2_rest: f32,
}

impl Lion {
    /// The scalars of this step, from the parameters by their names in `torch.optim`.
    pub fn new(beta1: f64, beta2: f64, args: &StepArgs) -> Lion {
        Lion {
            grad_scale: args.grad_scale,
            keep: args.keep(),
            lr: args.lr as f32,
            beta1: beta1 as f32,
            beta1_rest: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            beta2_rest: (1.0 - beta2) as f32,
        }
    }
}

impl Lion {
    /// Its scalars: gradient scale, what it keeps of a weight, learning rate, beta1, 1 - beta1, beta2, 1 - beta2.
    pub fn scalars(&self) -> [f32; 7] {
        let Lion { grad_scale, keep, lr, beta1, beta1_rest, beta2, beta2_rest } = *self;
        [grad_scale, keep, lr, beta1, beta1_rest, beta2, beta2_rest]
    }
}

impl Elementwise for Lion {
    #[inline(always)]
    fn strip(self, weights: &mut [f32], first: &mut [f32], _: &mut [f32], grad: &[f32]) {
        for ((weight, m), g) in weights.iter_mut().zip(first).zip(grad) {
            let g = g * self.grad_scale;
            let blend = self.beta1 * *m + self.beta1_rest * g;
            // A blend of zero moves nothing, as in the paper, so that a weight without gradients stays where it is.
            let step = if blend == 0.0 { 0.0 } else { self.lr.copysign(blend) };
            *weight = *weight * self.keep - step;
            *m = self.beta2 * *m + self.beta2_rest * g;
        }
    }
}
