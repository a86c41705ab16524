//! Losses: cross-entropy on logits, errors, binary cross-entropy, Kullback-Leibler divergence.

use oarlock_reference::loss::{IGNORED, Weighting, row_losses, token_losses};
use oarlock_reference::pair::PairLoss;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::{self, KlReduction, KlTarget, Reduction, RowLossOptions};
use oarlock_tensor::{DType, Device, Par, Param, Tensor};

use crate::common::{Array, Env, Node, array, case, formula_case, positive};

#[test]
fn cross_entropies() {
    for (labels, ignored) in [([3, -100, 0, 6, 6, -100], -100), ([0, 2, 0, 5, 6, 0], 0), ([-1; 6], -1)] {
        for reduction in [Reduction::Sum, Reduction::Mean] {
            let op = move |_: &Env, x: &[Tensor], _: &[Param]| {
                let labels = Tensor::from_slice(&labels, [2, 3], x[0].device())?;
                ops::cross_entropy(&x[0], &labels, ignored, reduction)
            };
            let formula = move |x: &[Node], _: &[Node]| {
                let labels = labels.map(|label| if label == ignored { IGNORED } else { label });
                let n = labels.iter().filter(|label| **label != IGNORED).count().max(1);
                let logits = x[0].reshape(&[6, 7]);
                let sum = token_losses(&logits, &labels, 0.0, Weighting::None).sum_all();
                if reduction == Reduction::Mean { sum.times(1.0 / n as f64) } else { sum }
            };
            formula_case("cross_entropy", [array(1, &[2, 3, 7])], [], op, formula).check();
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

/// The loss of each element and its target.
fn each(loss: PairLoss, x: &[&[f64]]) -> Vec<f64> {
    x[0].iter().zip(x[1]).map(|(x, t)| loss.value(*x, *t)).collect()
}

#[test]
fn divergences() {
    for (reduction, divisor) in
        [(KlReduction::Sum, 1.0), (KlReduction::Mean, 35.0), (KlReduction::BatchMean, 5.0)]
    {
        let sum = move |loss: PairLoss| move |x: &[&[f64]]| vec![each(loss, x).iter().sum::<f64>() / divisor];
        let op = move |x: &[Tensor]| ops::kl_div(&x[0], &x[1], KlTarget::Probs, reduction);
        let inputs = [array(1, &[5, 7]), positive(2, &[5, 7])];
        case("kl_div", inputs, op, sum(PairLoss::KlProbs)).check();
        let op = move |x: &[Tensor]| ops::kl_div(&x[0], &x[1], KlTarget::LogProbs, reduction);
        let inputs = [array(1, &[5, 7]), array(2, &[5, 7])];
        case("kl_div of logarithms", inputs, op, sum(PairLoss::KlLogProbs)).check();
    }
}

#[test]
fn losses_of_elements() {
    for reduction in [Reduction::None, Reduction::Sum, Reduction::Mean] {
        let reduced = move |losses: Vec<f64>| match reduction {
            Reduction::None => losses,
            Reduction::Sum => vec![losses.iter().sum()],
            Reduction::Mean => vec![losses.iter().sum::<f64>() / losses.len() as f64],
        };
        // Targets between the steps of x: no difference lies at a kink.
        let inputs = || {
            let mut target = array(2, &[5, 7]);
            target.data.iter_mut().for_each(|t| *t += 1.0 / 128.0);
            [array(1, &[5, 7]), target]
        };
        type Op = fn(&Tensor, &Tensor, Reduction) -> oarlock_tensor::Result<Tensor>;
        let of = |name, inputs: [Array; 2], op: Op, loss: PairLoss| {
            let op = move |x: &[Tensor]| op(&x[0], &x[1], reduction);
            // In 16 bits the differences are rounded before they are multiplied.
            case(name, inputs, op, move |x| reduced(each(loss, x))).check_dtypes(&[DType::F32]);
        };
        of("mse_loss", inputs(), ops::mse_loss, PairLoss::Squared);
        of("l1_loss", inputs(), ops::l1_loss, PairLoss::Absolute);
        let smooth = |beta, factor| PairLoss::Smooth { beta, factor };
        of("smooth_l1_loss", inputs(), |x, t, r| ops::smooth_l1_loss(x, t, 0.7, r), smooth(0.7, 1.0));
        of("huber_loss", inputs(), |x, t, r| ops::huber_loss(x, t, 1.7, r), smooth(1.7, 1.7));
        let probs = |seed| {
            let mut array = array(seed, &[5, 7]);
            array.data.iter_mut().for_each(|x| *x = 0.5 + *x / 4.5);
            array
        };
        of("binary_cross_entropy", [probs(1), probs(2)], ops::binary_cross_entropy, PairLoss::Binary);
    }
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[0f32; 2], [2], &device).unwrap();
    let text = ops::huber_loss(&x, &x, 0.0, Reduction::Mean).unwrap_err().to_string();
    assert_eq!(text, "huber_loss: expected a positive delta, got 0");
    let text = ops::smooth_l1_loss(&x, &x, -1.0, Reduction::Mean).unwrap_err().to_string();
    assert_eq!(text, "smooth_l1_loss: expected a beta of at least 0, got -1");
}

#[test]
fn losses_of_rows() {
    let labels = [3, -1, 0, 6, 6, 2];
    let weight = [0.5f32, 1.0, 2.0, 0.25, 1.5, 0.0, 3.0];
    for (weighted, smoothing, log_probs) in
        [(false, 0.0, false), (true, 0.0, false), (false, 0.3, false), (true, 0.3, false), (true, 0.0, true)]
    {
        let op = move |_: &Env, x: &[Tensor], _: &[Param]| {
            let device = x[0].device();
            let weight = weighted.then(|| Tensor::from_slice(&weight, [7], device)).transpose()?;
            let options = RowLossOptions { ignore_index: -1, weight, label_smoothing: smoothing, log_probs };
            let labels = Tensor::from_slice(&labels, [2, 3], device)?;
            Ok(ops::row_losses(&x[0], &labels, &options)?.losses)
        };
        let formula = move |x: &[Node], _: &[Node]| {
            let log_probs = if log_probs { x[0].clone() } else { x[0].log_softmax() };
            let weights = weight.map(f64::from);
            let classes = weighted.then_some(&weights[..]);
            row_losses(&log_probs, &labels, classes, f64::from(smoothing)).reshape(&[2, 3])
        };
        formula_case("row_losses", [array(1, &[2, 3, 7])], [], op, formula).check();
    }
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[0f32; 6], [2, 3], &device).unwrap();
    let labels = Tensor::from_slice(&[0, 2], [2], &device).unwrap();
    let text = |label_smoothing, weight| {
        let options = RowLossOptions { ignore_index: -1, weight, label_smoothing, log_probs: false };
        ops::row_losses(&x, &labels, &options).unwrap_err().to_string()
    };
    assert_eq!(text(1.5, None), "cross_entropy: expected a label smoothing of 0 to 1, got 1.5");
    let weight = Tensor::from_slice(&[0f32; 2], [2], &device).unwrap();
    assert_eq!(
        text(0.0, Some(weight)),
        "cross_entropy: expected weights of classes in f32 of shape [3], got [2]"
    );
    // A loss for each row is what the fused one adds up.
    let each = ops::cross_entropy(&x, &labels, -1, Reduction::None).unwrap().to_vec::<f32>().unwrap();
    let sum = ops::cross_entropy(&x, &labels, -1, Reduction::Sum).unwrap().item().unwrap();
    assert_eq!(each.iter().sum::<f32>(), sum);
}
