//! Adagrad, as `torch.optim.Adagrad`.

use super::{Elementwise, StepArgs};

/// The scalars of a step.
#[derive(Clone, Copy)]
pub struct Adagrad {
    grad_scale: f32,
    weight_decay: f32,
    lr: f32,
    /// Added to the sum: its first value, in the first step.
    start: f32,
    eps: f32,
}

impl Adagrad {
    /// The scalars of this step, from the parameters by their names in `torch.optim`.
    pub fn new(lr_decay: f64, initial_accumulator_value: f64, eps: f64, args: &StepArgs) -> Adagrad {
        let before = args.step.saturating_sub(1) as f64;
        Adagrad {
            grad_scale: args.grad_scale,
            weight_decay: args.weight_decay as f32,
            lr: (args.lr / (1.0 + before * lr_decay)) as f32,
            start: if args.step <= 1 { initial_accumulator_value as f32 } else { 0.0 },
            eps: eps as f32,
        }
    }
}

impl Adagrad {
    /// Its scalars: gradient scale, weight decay, learning rate, what is added to the sum, eps.
    pub fn scalars(&self) -> [f32; 5] {
        let Adagrad { grad_scale, weight_decay, lr, start, eps } = *self;
        [grad_scale, weight_decay, lr, start, eps]
    }
}

impl Elementwise for Adagrad {
    #[inline(always)]
    fn strip(self, weights: &mut [f32], first: &mut [f32], _: &mut [f32], grad: &[f32]) {
        for ((weight, sum), g) in weights.iter_mut().zip(first).zip(grad) {
            let g = g * self.grad_scale + self.weight_decay * *weight;
            *sum = (*sum + self.start) + g * g;
            *weight -= self.lr * (g / (sum.sqrt() + self.eps));
        }
    }
}
