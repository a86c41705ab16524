//! Losses of rows of logits that are not the plain cross-entropy: smoothed labels, and cross-entropy times a weight
//! that the row itself decides (Wu et al. 2025 by the probability of the label; EAFT by the entropy of the likeliest
//! tokens). The weights have no gradient.

use crate::Cpu;
use crate::cross_entropy::{
    IGNORE, LossSum, RowScale, cap_slope, cross_entropy, cross_entropy_grad, each_row, each_row_grad, loss,
    statistics,
};
use crate::dtype::Float;
use crate::error::Result;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::lanes;
use crate::math::exp;

/// What a label counts in the loss of its row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TokenLoss {
    /// The cross-entropy.
    #[default]
    CrossEntropy,
    /// This share of the loss is that of all tokens of the vocabulary in equal parts (Szegedy et al. 2016).
    Smoothed(f32),
    /// The cross-entropy times the probability of the label: dynamic fine-tuning (DFT).
    ByProbability,
    /// The cross-entropy times `(H / 3)^alpha`, H the entropy in nats of the [`N_LIKELIEST`] likeliest tokens among
    /// themselves: entropy-adaptive fine-tuning (EAFT).
    ByEntropy {
        /// The power.
        alpha: f32,
    },
}

/// The tokens whose entropy weighs a row in [`TokenLoss::ByEntropy`]; of smaller vocabularies all.
pub const N_LIKELIEST: usize = 20;

/// The loss of each row of `logits [rows, vocab]`, 0 where the label is [`IGNORE`].
///
/// # Errors
/// A label outside the vocabulary; then nothing was written.
pub fn token_loss(
    cpu: &Cpu,
    kind: TokenLoss,
    logits: &[f32],
    labels: &[i32],
    vocab: usize,
    losses: &mut [f32],
) -> Result<LossSum> {
    if kind == TokenLoss::CrossEntropy {
        return cross_entropy(cpu, logits, labels, vocab, losses);
    }
    each_row(cpu, logits, labels, vocab, losses, |logits, label| loss_row(cpu.isa, kind, logits, label))
}

instances! {
    /// [`token_loss`], and the gradient of each row's loss times its scale, 0 in rows that do not count. Where the logits
    /// are the output of a soft cap, `d_logits` is the gradient of its input.
    ///
    /// # Errors
    /// A label outside the vocabulary; then nothing was written.
    pub fn token_loss_grad[T: Float](
        cpu: &Cpu,
        kind: TokenLoss,
        logits: &[f32],
        labels: &[i32],
        vocab: usize,
        scale: RowScale<'_>,
        cap: Option<f32>,
        losses: &mut [f32],
        d_logits: &mut [T],
    ) -> Result<LossSum> {
        if kind == TokenLoss::CrossEntropy {
            return cross_entropy_grad(cpu, logits, labels, vocab, scale, cap, losses, d_logits);
        }
        let outputs = (losses, d_logits);
        each_row_grad(cpu, logits, labels, vocab, outputs, |row, logits, label, d_logits| {
            grad_row(cpu.isa, kind, logits, label, scale.of(row), cap, d_logits)
        })
    }
}

/// 1 for each row of which the label is the likeliest token, the first of equals; 0 for the others and where the label is
/// [`IGNORE`].
///
/// # Errors
/// A label outside the vocabulary; then nothing was written.
pub fn hits(cpu: &Cpu, logits: &[f32], labels: &[i32], vocab: usize, out: &mut [f32]) -> Result<()> {
    each_row(cpu, logits, labels, vocab, out, |logits, label| {
        f32::from(u8::from(label != IGNORE && is_likeliest(cpu.isa, logits, label as usize)))
    })?;
    Ok(())
}

/// What a row comes to.
struct Row {
    max: f32,
    sum: f32,
    /// What the cross-entropy is multiplied with.
    weight: f32,
    /// The share of all tokens together.
    smoothing: f32,
    loss: f32,
}

#[inline(always)]
fn row(kind: TokenLoss, logits: &[f32], label: usize) -> Row {
    let (max, sum) = statistics(logits);
    let plain = loss((max, sum), logits[label]);
    let with = |weight: f32, smoothing: f32, loss: f32| Row { max, sum, weight, smoothing, loss };
    match kind {
        TokenLoss::CrossEntropy => with(1.0, 0.0, plain),
        TokenLoss::Smoothed(smoothing) => {
            // The log-probability of a token is its logit less one number, the same for all of them.
            let mean = lanes::sum_map(logits, |x| x - max) / logits.len() as f32;
            with(1.0, smoothing, plain + smoothing * ((logits[label] - max) - mean))
        }
        TokenLoss::ByProbability => {
            let weight = exp(-plain);
            with(weight, 0.0, weight * plain)
        }
        TokenLoss::ByEntropy { alpha } => {
            let weight = libm::powf(entropy(logits) / 3.0, alpha);
            with(weight, 0.0, weight * plain)
        }
    }
}

/// The entropy of the likeliest tokens among themselves.
#[inline(always)]
fn entropy(logits: &[f32]) -> f32 {
    let n = logits.len().min(N_LIKELIEST);
    let mut top = [f32::NEG_INFINITY; N_LIKELIEST];
    for &x in logits {
        if x > top[n - 1] {
            let mut at = n - 1;
            while at > 0 && x > top[at - 1] {
                top[at] = top[at - 1];
                at -= 1;
            }
            top[at] = x;
        }
    }
    let top = &top[..n];
    let sum: f32 = top.iter().map(|x| exp(x - top[0])).sum();
    let log_sum = libm::logf(sum);
    let parts = top.iter().map(|x| {
        let log_prob = (x - top[0]) - log_sum;
        let part = exp(log_prob) * log_prob;
        // A token of no probability has no part.
        if log_prob == f32::NEG_INFINITY { 0.0 } else { part }
    });
    // Rounding may leave a certain row a little below 0, of which there is no root.
    (-parts.sum::<f32>()).max(0.0)
}

multiversion! {
    fn is_likeliest(logits: &[f32], label: usize) -> bool {
        let own = logits[label];
        logits[..label].iter().all(|x| *x < own) && logits[label..].iter().all(|x| *x <= own)
    }
}

multiversion! {
    fn loss_row(kind: TokenLoss, logits: &[f32], label: i32) -> f32 {
        if label == IGNORE {
            return 0.0;
        }
        row(kind, logits, label as usize).loss
    }
}

multiversion! {
    fn grad_row[T: Float](
        kind: TokenLoss,
        logits: &[f32],
        label: i32,
        scale: f32,
        cap: Option<f32>,
        d_logits: &mut [T],
    ) -> f32 {
        if label == IGNORE {
            d_logits.fill(T::from_f32(0.0));
            return 0.0;
        }
        let label = label as usize;
        let Row { max, sum, weight, smoothing, loss } = row(kind, logits, label);
        let scale = scale * weight;
        let (factor, even) = (scale / sum, scale * smoothing / logits.len() as f32);
        let at_label = exp(logits[label] - max) * factor - even - scale * (1.0 - smoothing);
        match cap {
            None => {
                for (d, x) in d_logits.iter_mut().zip(logits) {
                    *d = T::from_f32(exp(x - max) * factor - even);
                }
                d_logits[label] = T::from_f32(at_label);
            }
            Some(cap) => {
                for (d, x) in d_logits.iter_mut().zip(logits) {
                    *d = T::from_f32((exp(x - max) * factor - even) * cap_slope(*x, cap));
                }
                d_logits[label] = T::from_f32(at_label * cap_slope(logits[label], cap));
            }
        }
        loss
    }
}
