//! Cross-entropy of each row for itself, with weights of classes and smoothed labels.

use crate::Cpu;
use crate::cross_entropy::{IGNORE, statistics};
use crate::dtype::Float;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::lanes;
use crate::math::exp;
use crate::pieces::{cut, for_pieces, task_rows};

/// What the losses of rows are made of.
#[derive(Clone, Copy, Debug)]
pub struct RowLoss<'a> {
    /// The class of each row, or [`IGNORE`].
    pub labels: &'a [i32],
    /// The number of classes.
    pub n_classes: usize,
    /// A factor for each class.
    pub weight: Option<&'a [f32]>,
    /// The share of the loss that all classes have in equal parts (Szegedy et al. 2016).
    pub smoothing: f32,
    /// Whether rows are log-probabilities already, not logits.
    pub log_probs: bool,
}

impl RowLoss<'_> {
    fn weight_of(&self, class: usize) -> f32 {
        self.weight.map_or(1.0, |weight| weight[class])
    }

    /// What the log-probability of the label and the weighted one of every class count, with the sum of the latter.
    fn shares(&self, label: usize, total: f32) -> Shares {
        let n_classes = self.n_classes as f32;
        let hard = (1.0 - self.smoothing) * self.weight_of(label);
        let soft = self.smoothing / n_classes;
        Shares { hard, soft, all: hard + soft * total }
    }

    /// The sum of the weights of all classes.
    fn total(&self) -> f32 {
        self.weight.map_or(self.n_classes as f32, |weight| {
            weight.iter().map(|weight| f64::from(*weight)).sum::<f64>() as f32
        })
    }
}

#[derive(Clone, Copy)]
struct Shares {
    hard: f32,
    soft: f32,
    all: f32,
}

/// The loss of each row of `x [rows, classes]`, and the weight that it has in a mean: 0 where it is ignored.
pub fn forward(cpu: &Cpu, loss: RowLoss<'_>, x: &[f32], losses: &mut [f32], weights: &mut [f32]) {
    let (dim, n_rows) = (loss.n_classes, loss.labels.len());
    assert!(
        x.len() == n_rows * dim && losses.len() == n_rows && weights.len() == n_rows,
        "row loss: lengths"
    );
    let (task, total) = (task_rows(dim), loss.total());
    let n_tasks = n_rows.div_ceil(task);
    for_pieces(&cpu.par, n_tasks, (cut(losses, task), cut(weights, task)), |i, (losses, weights)| {
        let rows = x[i * task * dim..].chunks_exact(dim).zip(&loss.labels[i * task..]);
        for ((x, &label), (out, weight)) in rows.zip(losses.iter_mut().zip(weights)) {
            (*out, *weight) = (0.0, 0.0);
            if label != IGNORE {
                let label = label as usize;
                *weight = loss.weight_of(label);
                *out = row(cpu.isa, x, label, loss.log_probs, loss.weight, loss.shares(label, total));
            }
        }
    });
}

instances! {
    /// The gradient for x, from those of the losses.
    pub fn backward[T: Float](cpu: &Cpu, loss: RowLoss<'_>, x: &[f32], dy: &[f32], dx: &mut [T]) {
        let (dim, n_rows) = (loss.n_classes, loss.labels.len());
        assert!(x.len() == n_rows * dim && dx.len() == x.len() && dy.len() == n_rows, "row loss: lengths");
        let (task, total) = (task_rows(dim), loss.total());
        cpu.par.chunks_mut(dx, task * dim, |i, dx| {
            let rows = x[i * task * dim..].chunks_exact(dim).zip(dx.chunks_exact_mut(dim)).enumerate();
            for (r, (x, dx)) in rows {
                let (label, dy) = (loss.labels[i * task + r], dy[i * task + r]);
                if label == IGNORE {
                    dx.fill(T::from_f32(0.0));
                } else {
                    let label = label as usize;
                    grad_row(cpu.isa, x, label, loss.log_probs, loss.weight, loss.shares(label, total), dy, dx);
                }
            }
        });
    }
}

multiversion! {
    fn row(x: &[f32], label: usize, log_probs: bool, weight: Option<&[f32]>, shares: Shares) -> f32 {
        let log_sum = if log_probs {
            0.0
        } else {
            let (max, sum) = statistics(x);
            libm::log(f64::from(sum)) + f64::from(max)
        };
        let mut loss = (f64::from(shares.hard) * (log_sum - f64::from(x[label]))) as f32;
        if shares.soft != 0.0 {
            let log_sum = log_sum as f32;
            loss += shares.soft * match weight {
                Some(weight) => lanes::sum_map2(x, weight, |x, weight| weight * (log_sum - x)),
                None => lanes::sum_map(x, |x| log_sum - x),
            };
        }
        loss
    }
}

multiversion! {
    fn grad_row[T: Float](
        x: &[f32], label: usize, log_probs: bool, weight: Option<&[f32]>, shares: Shares, dy: f32, dx: &mut [T],
    ) {
        let (max, factor) = if log_probs {
            (0.0, 0.0)
        } else {
            let (max, sum) = statistics(x);
            (max, dy * shares.all / sum)
        };
        let prob = |x: f32| if log_probs { 0.0 } else { exp(x - max) * factor };
        let soft = dy * shares.soft;
        match weight {
            Some(weight) => {
                for ((dx, x), weight) in dx.iter_mut().zip(x).zip(weight) {
                    *dx = T::from_f32(prob(*x) - soft * weight);
                }
            }
            None => dx.iter_mut().zip(x).for_each(|(dx, x)| *dx = T::from_f32(prob(*x) - soft)),
        }
        let own = weight.map_or(1.0, |weight| weight[label]);
        dx[label] = T::from_f32(prob(x[label]) - soft * own - dy * shares.hard);
    }
}
