//! Gradient descent with momentum, as `torch.optim.SGD`.

use super::{Elementwise, StepArgs};

/// The scalars of a step.
#[derive(Clone, Copy)]
pub struct Sgd {
    grad_scale: f32,
    weight_decay: f32,
    lr: f32,
    momentum: f32,
    /// What the buffer keeps, and the share of the gradient that it takes up.
    keep: f32,
    take: f32,
    nesterov: bool,
}

impl Sgd {
    /// The scalars of this step, from the parameters by their names in `torch.optim`.
    pub fn new(momentum: f64, dampening: f64, nesterov: bool, args: &StepArgs) -> Sgd {
        // The first gradient fills the buffer, undampened.
        let (keep, take) =
            if args.step <= 1 { (0.0, 1.0) } else { (momentum as f32, (1.0 - dampening) as f32) };
        Sgd {
            grad_scale: args.grad_scale,
            weight_decay: args.weight_decay as f32,
            lr: args.lr as f32,
            momentum: momentum as f32,
            keep,
            take,
            nesterov,
        }
    }
}

impl Sgd {
    /// Its scalars: gradient scale, weight decay, learning rate, momentum, what the buffer keeps and takes up; and whether
    /// the momentum is Nesterov's.
    pub fn scalars(&self) -> ([f32; 6], bool) {
        let Sgd { grad_scale, weight_decay, lr, momentum, keep, take, nesterov } = *self;
        ([grad_scale, weight_decay, lr, momentum, keep, take], nesterov)
    }
}

impl Elementwise for Sgd {
    #[inline(always)]
    fn strip(self, weights: &mut [f32], first: &mut [f32], _: &mut [f32], grad: &[f32]) {
        if first.is_empty() {
            for (weight, g) in weights.iter_mut().zip(grad) {
                *weight -= self.lr * (g * self.grad_scale + self.weight_decay * *weight);
            }
            return;
        }
        for ((weight, buffer), g) in weights.iter_mut().zip(first).zip(grad) {
            let g = g * self.grad_scale + self.weight_decay * *weight;
            *buffer = *buffer * self.keep + self.take * g;
            let direction = if self.nesterov { g + self.momentum * *buffer } else { *buffer };
            *weight -= self.lr * direction;
        }
    }
}
