//! AdamW: one pass over master weights, moments and gradients that also writes the 16-bit working copy.

use super::Cpu;
use super::isa::multiversion;
use super::pieces::{TASK_ELEMS, cut, for_pieces};
use crate::dtype::Float;

/// The hyperparameters of one step over one range; `torch.optim.AdamW` with the same numbers does the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the corrected second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// The number of this step; the first is 1.
    pub step: u64,
    /// Multiplies each gradient first: clipping, loss scale, averaging.
    pub grad_scale: f32,
}

/// The state of the elements that a step updates, all of one length.
#[derive(Debug)]
pub struct AdamWState<'a> {
    /// Master weights.
    pub weights: &'a mut [f32],
    /// First moments.
    pub m: &'a mut [f32],
    /// Second moments.
    pub v: &'a mut [f32],
}

/// Scalars of a step, computed in f64 and rounded once, as torch does.
#[derive(Clone, Copy)]
struct Factors {
    grad_scale: f32,
    keep: f32,
    beta1_rest: f32,
    beta2: f32,
    beta2_rest: f32,
    root_correction2: f32,
    eps: f32,
    step_size: f32,
}

impl AdamW {
    fn factors(&self) -> Factors {
        let step = self.step as f64;
        Factors {
            grad_scale: self.grad_scale,
            keep: (1.0 - self.lr * self.weight_decay) as f32,
            beta1_rest: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            beta2_rest: (1.0 - self.beta2) as f32,
            root_correction2: (1.0 - self.beta2.powf(step)).sqrt() as f32,
            eps: self.eps as f32,
            step_size: (self.lr / (1.0 - self.beta1.powf(step))) as f32,
        }
    }
}

/// One AdamW step; `working` receives the new weights rounded to `T`.
pub fn adamw_step<T: Float>(
    cpu: &Cpu,
    args: &AdamW,
    state: AdamWState<'_>,
    grad: &[f32],
    working: Option<&mut [T]>,
) {
    let AdamWState { weights, m, v } = state;
    let n = grad.len();
    assert!([weights.len(), m.len(), v.len()] == [n; 3], "adamw_step: lengths");
    assert!(working.as_ref().is_none_or(|w| w.len() == n), "adamw_step: working copy");
    let factors = args.factors();
    let state = (cut(weights, TASK_ELEMS), cut(m, TASK_ELEMS), cut(v, TASK_ELEMS));
    let outputs = (state, working.map(|w| cut(w, TASK_ELEMS)));
    for_pieces(&cpu.par, n.div_ceil(TASK_ELEMS), outputs, |i, ((weights, m, v), working)| {
        let grad = &grad[i * TASK_ELEMS..];
        match working {
            None => adamw_task(cpu.isa, factors, weights, m, v, grad),
            Some(working) => adamw_working_task(cpu.isa, factors, weights, m, v, grad, working),
        }
    });
}

#[inline(always)]
fn update(f: Factors, weight: &mut f32, m: &mut f32, v: &mut f32, grad: f32) {
    let g = grad * f.grad_scale;
    // The two forms of a linear interpolation, chosen by the weight so that rounding matches torch's `lerp`.
    *m = if f.beta1_rest < 0.5 { *m + f.beta1_rest * (g - *m) } else { g - (g - *m) * (1.0 - f.beta1_rest) };
    *v = *v * f.beta2 + f.beta2_rest * g * g;
    let denominator = v.sqrt() / f.root_correction2 + f.eps;
    *weight = *weight * f.keep - f.step_size * *m / denominator;
}

multiversion! {
    fn adamw_task(f: Factors, weights: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32]) {
        for (((weight, m), v), g) in weights.iter_mut().zip(m).zip(v).zip(grad) {
            update(f, weight, m, v, *g);
        }
    }
}

multiversion! {
    fn adamw_working_task[T: Float](
        f: Factors, weights: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32], working: &mut [T],
    ) {
        for ((((weight, m), v), g), w) in weights.iter_mut().zip(m).zip(v).zip(grad).zip(working) {
            update(f, weight, m, v, *g);
            *w = T::from_f32(*weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, cpus, same_everywhere, values};
    use crate::dtype::bf16;

    fn args(step: u64, grad_scale: f32) -> AdamW {
        AdamW { lr: 3e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step, grad_scale }
    }

    #[test]
    fn five_steps_as_torch_takes_them() {
        let n = 6;
        let mut w: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
        let (mut m, mut v) = (vec![0.0; 6], vec![0.0; 6]);
        for step in 1..=5 {
            let grad: Vec<f32> = (0..n).map(|i| ((i * 53 + step * 29) % 97) as f32 - 48.0).collect();
            let state = AdamWState { weights: &mut w, m: &mut m, v: &mut v };
            adamw_step::<bf16>(&cpus()[0], &args(step, 0.01), state, &grad, None);
        }
        // torch 2.13: torch.optim.AdamW(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1).
        let torch =
            [-1.245_790_36, -0.326_899_29, 0.597_000_003, -1.004_347_56, -0.072_411_611_7, 0.856_113_195];
        assert_close(&w, &torch, 2e-7);
    }

    #[test]
    fn same_bits_everywhere_and_the_copy_is_rounded() {
        let n = TASK_ELEMS + 333;
        let grad = values::<f32>(1, n);
        let (w, copy, fresh) = same_everywhere(|cpu| {
            let (mut w, mut m, mut v) = (values::<f32>(2, n), values::<f32>(3, n), vec![0.25; n]);
            let mut fresh = (w.clone(), m.clone(), v.clone());
            let mut copy = vec![bf16::ZERO; n];
            let state = AdamWState { weights: &mut w, m: &mut m, v: &mut v };
            adamw_step(cpu, &args(7, 0.5), state, &grad, Some(&mut copy));
            let state = AdamWState { weights: &mut fresh.0, m: &mut fresh.1, v: &mut fresh.2 };
            adamw_step::<bf16>(cpu, &args(7, 0.5), state, &grad, None);
            assert_eq!((&fresh.1, &fresh.2), (&m, &v));
            (w, copy, fresh.0)
        });
        assert_eq!(w, fresh);
        assert!(copy.iter().zip(&w).all(|(c, w)| *c == bf16::from_f32(*w)));
    }
}
