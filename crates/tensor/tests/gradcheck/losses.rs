//! Losses: cross-entropy on logits, squared error, Kullback-Leibler divergence.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::{self, KlReduction, KlTarget, Reduction};
use oarlock_tensor::{Device, Par, Tensor};

use crate::common::{array, case, positive};

/// The summed cross-entropy of rows of logits, and the number of targets.
pub fn cross_entropy(logits: &[f64], labels: &[i32], vocab: usize, ignored: i32) -> (f64, usize) {
    let targets = logits.chunks(vocab).zip(labels).filter(|(_, label)| **label != ignored);
    let losses =
        targets.map(|(row, label)| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[*label as usize]);
    let losses: Vec<f64> = losses.collect();
    (losses.iter().sum(), losses.len())
}

#[test]
fn cross_entropies() {
    for (labels, ignored) in [([3, -100, 0, 6, 6, -100], -100), ([0, 2, 0, 5, 6, 0], 0), ([-1; 6], -1)] {
        for reduction in [Reduction::Sum, Reduction::Mean] {
            let op = move |x: &[Tensor]| {
                let labels = Tensor::from_slice(&labels, [2, 3], x[0].device())?;
                ops::cross_entropy(&x[0], &labels, ignored, reduction)
            };
            let reference = move |x: &[&[f64]]| {
                let (sum, n) = cross_entropy(x[0], &labels, 7, ignored);
                vec![if reduction == Reduction::Mean { sum / n.max(1) as f64 } else { sum }]
            };
            case("cross_entropy", [array(1, &[2, 3, 7])], op, reference).check();
        }
    }
    let device = Device::cpu(Isa::detect(), Par::solo());
    let logits = Tensor::from_slice(&[0f32; 6], [2, 3], &device).unwrap();
    let loss = |labels: &[i32]| {
        let labels = Tensor::from_slice(labels, [labels.len()], &device).unwrap();
        ops::cross_entropy(&logits, &labels, -1, Reduction::Sum)
    };
    assert_eq!(
        loss(&[0, -100]).unwrap_err().to_string(),
        "cross_entropy: index -100 at position 1 is outside 0..3"
    );
    assert_eq!(
        loss(&[3, 0]).unwrap_err().to_string(),
        "cross_entropy: index 3 at position 0 is outside 0..3"
    );
    assert_eq!(loss(&[0]).unwrap_err().to_string(), "cross_entropy: expected 2 labels (i32), got [1]");
}

#[test]
fn squared_errors() {
    for reduction in [Reduction::Sum, Reduction::Mean] {
        let op = move |x: &[Tensor]| ops::mse_loss(&x[0], &x[1], reduction);
        let reference = move |x: &[&[f64]]| {
            let sum: f64 = x[0].iter().zip(x[1]).map(|(x, t)| (x - t).powi(2)).sum();
            vec![if reduction == Reduction::Mean { sum / 35.0 } else { sum }]
        };
        case("mse_loss", [array(1, &[5, 7]), array(2, &[5, 7])], op, reference).check();
    }
}

#[test]
fn divergences() {
    for (reduction, divisor) in
        [(KlReduction::Sum, 1.0), (KlReduction::Mean, 35.0), (KlReduction::BatchMean, 5.0)]
    {
        let probs = move |x: &[&[f64]]| {
            vec![x[0].iter().zip(x[1]).map(|(x, p)| p * (p.ln() - x)).sum::<f64>() / divisor]
        };
        let op = move |x: &[Tensor]| ops::kl_div(&x[0], &x[1], KlTarget::Probs, reduction);
        case("kl_div", [array(1, &[5, 7]), positive(2, &[5, 7])], op, probs).check();
        let logs = move |x: &[&[f64]]| {
            vec![x[0].iter().zip(x[1]).map(|(x, t)| t.exp() * (t - x)).sum::<f64>() / divisor]
        };
        let op = move |x: &[Tensor]| ops::kl_div(&x[0], &x[1], KlTarget::LogProbs, reduction);
        case("kl_div of logarithms", [array(1, &[5, 7]), array(2, &[5, 7])], op, logs).check();
    }
}
