//! Losses that compare two tensors element by element: errors, binary cross-entropy, Kullback-Leibler divergence.

use crate::Cpu;
use crate::dtype::Float;
use crate::instances::instances;
use crate::math::{exp, log};
use crate::pieces::{TASK_ELEMS, elementwise};
use crate::sums::{NORM_BLOCK, tree_sum};

/// What an element of the input and one of the target cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairLoss {
    /// `(x - t)^2`.
    Squared,
    /// `|x - t|`; its gradient at 0 is 0.
    Absolute,
    /// `factor (x - t)^2 / 2 beta` for differences below `beta`, and `factor (|x - t| - beta / 2)` for the others.
    Smooth {
        /// Where the square ends; above 0.
        beta: f32,
        /// The slope behind it.
        factor: f32,
    },
    /// `-t ln x - (1 - t) ln(1 - x)` for probabilities; logarithms are -100 or more.
    Binary,
    /// `t (ln t - x)` for a log-probability x and a probability t; 0 where t is 0.
    KlProbs,
    /// `e^t (t - x)` for two log-probabilities.
    KlLogProbs,
}

impl PairLoss {
    /// What the elements `x` of the input and `t` of the target cost, in f64.
    pub fn value(self, x: f64, t: f64) -> f64 {
        match self {
            PairLoss::Squared => (x - t) * (x - t),
            PairLoss::Absolute => (x - t).abs(),
            PairLoss::Smooth { beta, factor } => {
                let (beta, distance) = (f64::from(beta), (x - t).abs());
                let square = 0.5 * distance * distance / beta;
                f64::from(factor) * if distance < beta { square } else { distance - 0.5 * beta }
            }
            PairLoss::Binary => -t * libm::log(x).max(-100.0) - (1.0 - t) * libm::log(1.0 - x).max(-100.0),
            PairLoss::KlProbs if t == 0.0 => 0.0,
            PairLoss::KlProbs => t * (libm::log(t) - x),
            PairLoss::KlLogProbs if t == f64::NEG_INFINITY => 0.0,
            PairLoss::KlLogProbs => libm::exp(t) * (t - x),
        }
    }
}

instances! {
    /// The sum over all elements: blocks of fixed length added in a pairwise tree.
    pub fn sum[T: Float](cpu: &Cpu, loss: PairLoss, x: &[T], target: &[T]) -> f64 {
        assert_eq!(x.len(), target.len(), "pair loss: lengths");
        let mut blocks = vec![0.0; x.len().div_ceil(NORM_BLOCK)];
        cpu.par.chunks_mut(&mut blocks, 1, |i, block| {
            let range = i * NORM_BLOCK..x.len().min((i + 1) * NORM_BLOCK);
            let pairs = x[range.clone()].iter().zip(&target[range]);
            block[0] = pairs.map(|(x, t)| loss.value(f64::from(x.to_f32()), f64::from(t.to_f32()))).sum();
        });
        tree_sum(&blocks)
    }
}

instances! {
    /// What each element costs.
    pub fn each[T: Float](cpu: &Cpu, loss: PairLoss, x: &[T], target: &[T], y: &mut [T]) {
        assert!([x.len(), target.len()] == [y.len(); 2], "pair loss: lengths");
        cpu.par.chunks_mut(y, TASK_ELEMS, |i, y| {
            let from = i * TASK_ELEMS;
            for ((y, x), t) in y.iter_mut().zip(&x[from..]).zip(&target[from..]) {
                *y = T::from_f32(loss.value(f64::from(x.to_f32()), f64::from(t.to_f32())) as f32);
            }
        });
    }
}

/// The slope of a distance.
#[inline(always)]
fn sign(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1f32.copysign(x) }
}

/// The slope of [`PairLoss::Smooth`] at a difference.
#[inline(always)]
fn smooth_slope(difference: f32, beta: f32, factor: f32) -> f32 {
    factor * if difference.abs() < beta { difference / beta } else { sign(difference) }
}

#[inline(always)]
fn map<T: Float>(x: &[T], t: &[T], d: &mut [T], f: impl Fn(f32, f32) -> f32) {
    for ((d, x), t) in d.iter_mut().zip(x).zip(t) {
        *d = T::from_f32(f(x.to_f32(), t.to_f32()));
    }
}

elementwise! {
    /// The gradient for the input times `scale`.
    pub fn input_grad[T: Float](loss: PairLoss, scale: f32)(x: &[T], t: &[T]) -> (dx: &mut [T]) {
        match loss {
            PairLoss::Squared => map(x, t, dx, |x, t| 2.0 * scale * (x - t)),
            PairLoss::Absolute => map(x, t, dx, |x, t| scale * sign(x - t)),
            PairLoss::Smooth { beta, factor } => {
                map(x, t, dx, |x, t| scale * smooth_slope(x - t, beta, factor));
            }
            // As torch bounds it where a probability is 0 or 1.
            PairLoss::Binary => map(x, t, dx, |x, t| scale * (x - t) / ((1.0 - x) * x).max(1e-12)),
            PairLoss::KlProbs => map(x, t, dx, |_, t| -scale * t),
            PairLoss::KlLogProbs => map(x, t, dx, |_, t| -scale * exp(t)),
        }
    }
}

instances! {
    /// The gradient for the target times `scale`.
    pub fn target_grad[T: Float](cpu: &Cpu, loss: PairLoss, scale: f32, x: &[T], target: &[T], dt: &mut [T]) {
        assert!([x.len(), target.len()] == [dt.len(); 2], "pair loss: lengths");
        cpu.par.chunks_mut(dt, TASK_ELEMS, |i, dt| {
            let from = i * TASK_ELEMS;
            let (x, t) = (&x[from..], &target[from..]);
            match loss {
                PairLoss::Squared => map(x, t, dt, |x, t| 2.0 * scale * (t - x)),
                PairLoss::Absolute => map(x, t, dt, |x, t| scale * sign(t - x)),
                PairLoss::Smooth { beta, factor } => {
                    map(x, t, dt, |x, t| scale * smooth_slope(t - x, beta, factor));
                }
                PairLoss::Binary => {
                    map(x, t, dt, |x, _| scale * (log(1.0 - x).max(-100.0) - log(x).max(-100.0)));
                }
                PairLoss::KlProbs => map(x, t, dt, |x, t| scale * (log(t) + 1.0 - x)),
                PairLoss::KlLogProbs => map(x, t, dt, |x, t| scale * exp(t) * (t + 1.0 - x)),
            }
        });
    }
}
