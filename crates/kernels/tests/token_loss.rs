//! Losses of tokens against f64, and their gradients against finite differences with the weights held.

use oarlock_kernels::bf16;
use oarlock_kernels::cross_entropy::{IGNORE, RowScale, soft_cap};
use oarlock_kernels::token_loss::{N_LIKELIEST, TokenLoss, hits, token_loss, token_loss_grad};

use crate::everywhere::{assert_close, f64s, same_everywhere, values};

const KINDS: [TokenLoss; 6] = [
    TokenLoss::CrossEntropy,
    TokenLoss::Smoothed(0.0),
    TokenLoss::Smoothed(0.1),
    TokenLoss::ByProbability,
    TokenLoss::ByEntropy { alpha: 1.0 },
    TokenLoss::ByEntropy { alpha: 0.5 },
];

fn log_probs(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::MIN, f64::max);
    let log_sum = x.iter().map(|x| (x - max).exp()).sum::<f64>().ln() + max;
    x.iter().map(|x| x - log_sum).collect()
}

/// The factor of the cross-entropy.
fn weight(kind: TokenLoss, x: &[f64], label: usize) -> f64 {
    match kind {
        TokenLoss::CrossEntropy | TokenLoss::Smoothed(_) => 1.0,
        TokenLoss::ByProbability => log_probs(x)[label].exp(),
        TokenLoss::ByEntropy { alpha } => {
            let mut top = x.to_vec();
            top.sort_by(|a, b| b.total_cmp(a));
            top.truncate(N_LIKELIEST);
            let entropy: f64 = log_probs(&top).iter().map(|log| -log.exp() * log).sum();
            (entropy / 3.0).powf(f64::from(alpha))
        }
    }
}

/// The loss with a weight that is given.
fn loss(kind: TokenLoss, weight: f64, x: &[f64], label: usize) -> f64 {
    let log_probs = log_probs(x);
    let smoothing = match kind {
        TokenLoss::Smoothed(smoothing) => f64::from(smoothing),
        _ => 0.0,
    };
    let all = log_probs.iter().sum::<f64>() / x.len() as f64;
    -weight * ((1.0 - smoothing) * log_probs[label] + smoothing * all)
}

#[test]
fn losses_and_gradients_match_the_reference() {
    for (rows, vocab) in [(1, 2), (5, 7), (9, 33), (3, 301)] {
        let x: Vec<f32> = values::<f32>(7, rows * vocab).iter().map(|x| x * 3.0).collect();
        let labels: Vec<i32> =
            (0..rows).map(|row| if row % 4 == 2 { IGNORE } else { (row * 5 % vocab) as i32 }).collect();
        let scales: Vec<f32> = (0..rows).map(|row| 0.37 + row as f32 / 64.0).collect();
        for (kind, cap) in KINDS.iter().flat_map(|kind| [(*kind, None), (*kind, Some(2.5f32))]) {
            let (losses, d, d_bf16) = same_everywhere(|cpu| {
                let mut y = x.clone();
                if let Some(cap) = cap {
                    soft_cap(cpu, cap, &mut y);
                }
                let mut losses = vec![9.0; rows];
                let total = token_loss(cpu, kind, &y, &labels, vocab, &mut losses).unwrap();
                let (mut again, mut d, mut d_bf16) =
                    (vec![9.0; rows], vec![9.0f32; x.len()], vec![bf16::ONE; x.len()]);
                let scale = RowScale::PerRow(&scales);
                let with_grad =
                    token_loss_grad(cpu, kind, &y, &labels, vocab, scale, cap, &mut again, &mut d).unwrap();
                assert_eq!((with_grad, &again), (total, &losses));
                token_loss_grad(cpu, kind, &y, &labels, vocab, scale, cap, &mut again, &mut d_bf16).unwrap();
                (losses, d, d_bf16)
            });
            let capped = |x: &[f64]| -> Vec<f64> {
                x.iter().map(|x| cap.map_or(*x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh())).collect()
            };
            let (mut want_losses, mut want_d) = (vec![], vec![]);
            for ((x, &label), &scale) in f64s(&x).chunks(vocab).zip(&labels).zip(&scales) {
                if label == IGNORE {
                    want_losses.push(0.0);
                    want_d.extend(x.iter().map(|_| 0.0));
                    continue;
                }
                let label = label as usize;
                let weight = weight(kind, &capped(x), label);
                want_losses.push(loss(kind, weight, &capped(x), label));
                for j in 0..vocab {
                    let at = |step: f64| {
                        let mut x = x.to_vec();
                        x[j] += step;
                        loss(kind, weight, &capped(&x), label)
                    };
                    want_d.push((at(1e-5) - at(-1e-5)) / 2e-5 * f64::from(scale));
                }
            }
            assert_close(&losses, &want_losses, 3e-6);
            assert_close(&d, &want_d, 3e-6);
            assert_close(&d_bf16, &want_d, 3e-3);
        }
    }
}

#[test]
fn a_certain_row_weighs_nothing_and_is_finite() {
    let mut x = vec![0.0f32; 40];
    x[3] = 200.0;
    let kind = TokenLoss::ByEntropy { alpha: 0.5 };
    let (losses, d) = same_everywhere(|cpu| {
        let (mut losses, mut d) = ([9.0], vec![9.0f32; 40]);
        let scale = RowScale::Uniform(1.0);
        token_loss_grad(cpu, kind, &x, &[5], 40, scale, None, &mut losses, &mut d).unwrap();
        (losses, d)
    });
    assert_eq!(losses, [0.0]);
    assert!(d.iter().all(|d| *d == 0.0), "{d:?}");
}

#[test]
fn a_hit_is_the_first_of_the_likeliest() {
    let logits = [1.0, 3.0, 3.0, -1.0, -1.0, -2.0, 5.0, 0.0, 1.0, 2.0, 2.0, 2.0];
    let out = same_everywhere(|cpu| {
        let mut out = [9.0; 4];
        hits(cpu, &logits, &[1, 0, IGNORE, 2], 3, &mut out).unwrap();
        out
    });
    assert_eq!(out, [1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn a_label_outside_of_the_vocabulary_is_refused() {
    same_everywhere(|cpu| {
        let error = token_loss(cpu, TokenLoss::ByProbability, &[0.0; 6], &[0, 3], 3, &mut [0.0; 2]);
        assert_eq!(error.unwrap_err().to_string(), "cross_entropy: index 3 at position 1 is outside 0..3");
    });
}
