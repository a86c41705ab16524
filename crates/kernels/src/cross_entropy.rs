//! Cross-entropy of rows of logits against labels: the loss, and with it the gradient in one sweep over a row.

use crate::Cpu;
use crate::dtype::Float;
use crate::error::{Error, Result};
use crate::instances::instances;
use crate::isa::multiversion;
use crate::lanes;
use crate::math::{exp, tanh};
use crate::pieces::{cut, elementwise, for_pieces, task_rows};
use crate::sums::tree_sum_f32;

/// The label of a row that does not count.
pub const IGNORE: i32 = -100;

/// The loss of some rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossSum {
    /// The losses of the counted rows, added in a pairwise tree over all rows.
    pub sum: f64,
    /// The rows whose label is not [`IGNORE`].
    pub count: usize,
}

/// The factor of a row's gradient.
#[derive(Clone, Copy, Debug)]
pub enum RowScale<'a> {
    /// The same in all rows.
    Uniform(f32),
    /// One for each row.
    PerRow(&'a [f32]),
}

impl RowScale<'_> {
    pub(crate) fn of(&self, row: usize) -> f32 {
        match self {
            RowScale::Uniform(scale) => *scale,
            RowScale::PerRow(scales) => scales[row],
        }
    }
}

elementwise! {
    /// The soft cap of Gemma 2: `x = cap tanh(x / cap)`.
    pub fn soft_cap(cap: f32)() -> (x: &mut [f32]) {
        for x in x {
            *x = cap * tanh(*x / cap);
        }
    }
}

/// The sum of the losses of all rows: a pairwise tree over each `chunk` of them, chunk after chunk.
pub fn total(losses: &[f32], chunk: usize) -> f64 {
    losses.chunks(chunk).map(tree_sum_f32).fold(0.0, |sum, part| sum + part)
}

/// The loss of each row of `logits [rows, vocab]`, 0 where the label is [`IGNORE`].
///
/// # Errors
/// A label outside the vocabulary; then nothing was written.
pub fn cross_entropy(
    cpu: &Cpu,
    logits: &[f32],
    labels: &[i32],
    vocab: usize,
    losses: &mut [f32],
) -> Result<LossSum> {
    each_row(cpu, logits, labels, vocab, losses, |logits, label| loss_row(cpu.isa, logits, label))
}

instances! {
    /// [`cross_entropy`], and `d_logits = scale * (softmax - onehot)`, 0 in rows that do not count. Where the logits are
    /// the output of a [`soft_cap`], `d_logits` is the gradient of its input.
    ///
    /// # Errors
    /// A label outside the vocabulary; then nothing was written.
    pub fn cross_entropy_grad[T: Float](
        cpu: &Cpu,
        logits: &[f32],
        labels: &[i32],
        vocab: usize,
        scale: RowScale<'_>,
        cap: Option<f32>,
        losses: &mut [f32],
        d_logits: &mut [T],
    ) -> Result<LossSum> {
        let outputs = (losses, d_logits);
        each_row_grad(cpu, logits, labels, vocab, outputs, |row, logits, label, d_logits| {
            grad_row(cpu.isa, logits, label, scale.of(row), cap, d_logits)
        })
    }
}

/// [`cross_entropy_grad`] that overwrites the logits with their gradient.
///
/// # Errors
/// A label outside the vocabulary; then nothing was written.
pub fn cross_entropy_grad_in_place(
    cpu: &Cpu,
    logits: &mut [f32],
    labels: &[i32],
    vocab: usize,
    scale: RowScale<'_>,
    cap: Option<f32>,
    losses: &mut [f32],
) -> Result<LossSum> {
    let count = check(labels, vocab, logits.len(), losses.len())?;
    let task = task_rows(vocab);
    let outputs = (cut(losses, task), cut(logits, task * vocab));
    for_pieces(&cpu.par, labels.len().div_ceil(task), outputs, |i, (losses, logits)| {
        let rows = logits.chunks_exact_mut(vocab).zip(&labels[i * task..]).zip(losses);
        for (row, ((logits, &label), loss)) in rows.enumerate() {
            *loss = grad_row_in_place(cpu.isa, logits, label, scale.of(i * task + row), cap);
        }
    });
    Ok(LossSum { sum: tree_sum_f32(losses), count })
}

/// What `of_row` makes of the logits and the label of each row, and their sum.
pub(crate) fn each_row(
    cpu: &Cpu,
    logits: &[f32],
    labels: &[i32],
    vocab: usize,
    losses: &mut [f32],
    of_row: impl Fn(&[f32], i32) -> f32 + Sync,
) -> Result<LossSum> {
    let count = check(labels, vocab, logits.len(), losses.len())?;
    let task = task_rows(vocab);
    cpu.par.chunks_mut(losses, task, |i, losses| {
        let rows = logits[i * task * vocab..].chunks_exact(vocab).zip(&labels[i * task..]);
        for ((logits, &label), loss) in rows.zip(losses) {
            *loss = of_row(logits, label);
        }
    });
    Ok(LossSum { sum: tree_sum_f32(losses), count })
}

/// [`each_row`] for losses with gradients: `of_row` has the row's number as well, and fills its part of the second
/// output.
pub(crate) fn each_row_grad<T: Float>(
    cpu: &Cpu,
    logits: &[f32],
    labels: &[i32],
    vocab: usize,
    (losses, d_logits): (&mut [f32], &mut [T]),
    of_row: impl Fn(usize, &[f32], i32, &mut [T]) -> f32 + Sync,
) -> Result<LossSum> {
    let count = check(labels, vocab, logits.len(), losses.len())?;
    assert_eq!(logits.len(), d_logits.len(), "cross_entropy: d_logits");
    let task = task_rows(vocab);
    let outputs = (cut(losses, task), cut(d_logits, task * vocab));
    for_pieces(&cpu.par, labels.len().div_ceil(task), outputs, |i, (losses, d_logits)| {
        let rows = logits[i * task * vocab..].chunks_exact(vocab).zip(&labels[i * task..]);
        let outputs = losses.iter_mut().zip(d_logits.chunks_exact_mut(vocab));
        for (row, ((logits, &label), (loss, d_logits))) in rows.zip(outputs).enumerate() {
            *loss = of_row(i * task + row, logits, label, d_logits);
        }
    });
    Ok(LossSum { sum: tree_sum_f32(losses), count })
}

/// The number of rows that count, once all lengths and labels are known to be good.
pub(crate) fn check(labels: &[i32], vocab: usize, n_logits: usize, n_losses: usize) -> Result<usize> {
    assert!(
        vocab > 0 && n_logits == labels.len() * vocab && n_losses == labels.len(),
        "cross_entropy: lengths"
    );
    let bad = labels.iter().position(|&l| l != IGNORE && (l < 0 || l as usize >= vocab));
    if let Some(position) = bad {
        let index = i64::from(labels[position]);
        return Err(Error::Index { op: "cross_entropy", index, position, bound: vocab });
    }
    Ok(labels.iter().filter(|&&l| l != IGNORE).count())
}

/// The maximum of a row and `sum of e^(x - maximum)`.
#[inline(always)]
pub(super) fn statistics(logits: &[f32]) -> (f32, f32) {
    let max = lanes::max(logits);
    (max, lanes::sum_map(logits, |x| exp(x - max)))
}

#[inline(always)]
pub(crate) fn loss((max, sum): (f32, f32), logit: f32) -> f32 {
    (libm::log(f64::from(sum)) + (f64::from(max) - f64::from(logit))) as f32
}

/// The derivative of [`soft_cap`] where its output is `x`.
#[inline(always)]
pub(crate) fn cap_slope(x: f32, cap: f32) -> f32 {
    let t = x / cap;
    1.0 - t * t
}

multiversion! {
    fn loss_row(logits: &[f32], label: i32) -> f32 {
        if label == IGNORE {
            return 0.0;
        }
        loss(statistics(logits), logits[label as usize])
    }
}

multiversion! {
    fn grad_row[T: Float](logits: &[f32], label: i32, scale: f32, cap: Option<f32>, d_logits: &mut [T]) -> f32 {
        if label == IGNORE {
            d_logits.fill(T::from_f32(0.0));
            return 0.0;
        }
        let (max, sum) = statistics(logits);
        let factor = scale / sum;
        let label = label as usize;
        let at_label = exp(logits[label] - max) * factor - scale;
        match cap {
            None => {
                for (d, x) in d_logits.iter_mut().zip(logits) {
                    *d = T::from_f32(exp(x - max) * factor);
                }
                d_logits[label] = T::from_f32(at_label);
            }
            Some(cap) => {
                for (d, x) in d_logits.iter_mut().zip(logits) {
                    *d = T::from_f32(exp(x - max) * factor * cap_slope(*x, cap));
                }
                d_logits[label] = T::from_f32(at_label * cap_slope(logits[label], cap));
            }
        }
        loss((max, sum), logits[label])
    }
}

multiversion! {
    fn grad_row_in_place(logits: &mut [f32], label: i32, scale: f32, cap: Option<f32>) -> f32 {
        if label == IGNORE {
            logits.fill(0.0);
            return 0.0;
        }
        let (max, sum) = statistics(logits);
        let (label, factor) = (label as usize, scale / sum);
        let loss = loss((max, sum), logits[label]);
        match cap {
            None => {
                for x in &mut *logits {
                    *x = exp(*x - max) * factor;
                }
                logits[label] -= scale;
            }
            Some(cap) => {
                let at_label = scale * cap_slope(logits[label], cap);
                for x in &mut *logits {
                    *x = exp(*x - max) * factor * cap_slope(*x, cap);
                }
                logits[label] -= at_label;
            }
        }
        loss
    }
}
