//! Losses of rows and their gradients against f64 references.

use oarlock_kernels::bf16;
use oarlock_kernels::cross_entropy::{
    IGNORE, RowScale, cross_entropy, cross_entropy_grad, cross_entropy_grad_in_place, soft_cap,
};

use crate::everywhere::{assert_close, cpus, f64s, same_everywhere, values};

fn labels(rows: usize, vocab: usize) -> Vec<i32> {
    (0..rows).map(|r| if r % 4 == 3 { IGNORE } else { (r * 31 % vocab) as i32 }).collect()
}

#[test]
fn loss_and_gradient_match_the_reference() {
    for (rows, vocab) in [(1, 1), (5, 3), (9, 6400), (40, 1001)] {
        let logits: Vec<f32> = values::<f32>(1, rows * vocab).iter().map(|x| x * 6.0).collect();
        let labels = labels(rows, vocab);
        let scales: Vec<f32> = (0..rows).map(|row| 0.37 + row as f32 / 64.0).collect();
        let scale = RowScale::PerRow(&scales);
        let (total, losses, d, d_bf16) = same_everywhere(|cpu| {
            let (mut losses, mut d, mut d_bf16) =
                (vec![9.0; rows], logits.clone(), vec![bf16::ONE; logits.len()]);
            let total = cross_entropy(cpu, &logits, &labels, vocab, &mut losses).unwrap();
            let mut again = vec![9.0; rows];
            let result =
                cross_entropy_grad(cpu, &logits, &labels, vocab, scale, None, &mut again, &mut d_bf16)
                    .unwrap();
            assert_eq!((result, &again), (total, &losses));
            let result =
                cross_entropy_grad_in_place(cpu, &mut d, &labels, vocab, scale, None, &mut again).unwrap();
            assert_eq!((result, &again), (total, &losses));
            (total, losses, d, d_bf16)
        });
        let (mut want_losses, mut want_d) = (vec![], vec![]);
        for ((x, &label), &scale) in f64s(&logits).chunks(vocab).zip(&labels).zip(&scales) {
            let max = x.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
            let counts = label != IGNORE;
            want_losses.push(if counts { sum.ln() + max - x[label as usize] } else { 0.0 });
            want_d.extend(x.iter().enumerate().map(|(j, x)| {
                let onehot = if j as i32 == label { 1.0 } else { 0.0 };
                if counts { ((x - max).exp() / sum - onehot) * f64::from(scale) } else { 0.0 }
            }));
        }
        assert_close(&losses, &want_losses, 1e-6);
        assert_close(&d, &want_d, 1e-6);
        assert_close(&d_bf16, &want_d, 2e-3);
        assert!((total.sum - want_losses.iter().sum::<f64>()).abs() < 1e-5 * (1.0 + total.sum));
        assert_eq!(total.count, labels.iter().filter(|&&l| l != IGNORE).count());
    }
}

#[test]
fn capped_logits_and_their_gradient() {
    let (vocab, cap, label) = (77, 1.5, 5);
    let x = values::<f32>(1, vocab);
    let capped = |x: &[f64]| x.iter().map(|x| 1.5 * (x / 1.5).tanh()).collect::<Vec<f64>>();
    let loss = |x: &[f64]| {
        let capped = capped(x);
        capped.iter().map(|x| x.exp()).sum::<f64>().ln() - capped[label]
    };
    let (y, d, d_bf16) = same_everywhere(|cpu| {
        let mut y = x.clone();
        soft_cap(cpu, cap, &mut y);
        let (mut d, mut d_bf16, mut losses) = (y.clone(), vec![bf16::ONE; vocab], [0.0]);
        let (labels, scale) = (&[label as i32], RowScale::Uniform(0.5));
        cross_entropy_grad(cpu, &y, labels, vocab, scale, Some(cap), &mut losses, &mut d_bf16).unwrap();
        cross_entropy_grad_in_place(cpu, &mut d, labels, vocab, scale, Some(cap), &mut losses).unwrap();
        (y, d, d_bf16)
    });
    let x = f64s(&x);
    assert_close(&y, &capped(&x), 1e-6);
    let slope = |i: usize| {
        let at = |h: f64| {
            let mut x = x.clone();
            x[i] += h;
            loss(&x)
        };
        0.5 * (at(1e-5) - at(-1e-5)) / 2e-5
    };
    let want: Vec<f64> = (0..vocab).map(slope).collect();
    assert_close(&d, &want, 1e-6);
    assert_close(&d_bf16, &want, 2e-3);
}

#[test]
fn bad_labels_are_named_and_bad_logits_show() {
    let cpu = &cpus()[0];
    let mut losses = [5.0; 2];
    let error = cross_entropy(cpu, &[0.0; 6], &[0, 3], 3, &mut losses).unwrap_err();
    assert_eq!(error.to_string(), "cross_entropy: index 3 at position 1 is outside 0..3");
    assert!(
        cross_entropy_grad_in_place(
            cpu,
            &mut [0.0; 6],
            &[-1, 0],
            3,
            RowScale::Uniform(1.0),
            None,
            &mut losses
        )
        .is_err()
    );
    assert_eq!(losses, [5.0; 2]);
    cross_entropy(cpu, &[0.0, f32::NAN, 1.0, 0.0, 0.0, f32::NEG_INFINITY], &[0, 0], 3, &mut losses).unwrap();
    assert!(losses[0].is_nan() && (losses[1] - 2f32.ln()).abs() < 1e-6);
}
