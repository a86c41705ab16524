//! Losses of tokens and their gradients against f64.

use oarlock_kernels::bf16;
use oarlock_kernels::cross_entropy::{IGNORE, RowScale};
use oarlock_kernels::token_loss::{N_LIKELIEST, TokenLoss, hits, token_loss, token_loss_grad};
use oarlock_reference::loss::{Case, SHAPES, Weighting};

use crate::everywhere::same_everywhere;

const KINDS: [TokenLoss; 6] = [
    TokenLoss::CrossEntropy,
    TokenLoss::Smoothed(0.0),
    TokenLoss::Smoothed(0.1),
    TokenLoss::ByProbability,
    TokenLoss::ByEntropy { alpha: 1.0 },
    TokenLoss::ByEntropy { alpha: 0.5 },
];

/// The smoothing and the weights of a loss.
fn of_reference(kind: TokenLoss) -> (f32, Weighting) {
    match kind {
        TokenLoss::CrossEntropy => (0.0, Weighting::None),
        TokenLoss::Smoothed(smoothing) => (smoothing, Weighting::None),
        TokenLoss::ByProbability => (0.0, Weighting::ByProbability),
        TokenLoss::ByEntropy { alpha } => {
            (0.0, Weighting::ByEntropy { alpha: f64::from(alpha), n_likeliest: N_LIKELIEST })
        }
    }
}

#[test]
fn losses_and_gradients_match_the_reference() {
    let all = KINDS.into_iter().flat_map(|kind| [(kind, None), (kind, Some(2.5f32))]);
    for ((kind, cap), shape) in all.flat_map(|of| SHAPES.map(|shape| (of, shape))) {
        let (smoothing, weighting) = of_reference(kind);
        let c = Case::<f32>::new(shape, 3.0, cap, smoothing, weighting);
        let (losses, d, d_bf16) = same_everywhere(|cpu| {
            let (x, labels, vocab) = (&c.logits, &c.labels, c.vocab);
            let mut losses = vec![9.0; c.rows];
            let total = token_loss(cpu, kind, x, labels, vocab, &mut losses).unwrap();
            let (mut again, mut d, mut d_bf16) =
                (vec![9.0; c.rows], vec![9.0f32; x.len()], vec![bf16::ONE; x.len()]);
            let scale = RowScale::PerRow(&c.scales);
            let with_grad =
                token_loss_grad(cpu, kind, x, labels, vocab, scale, cap, &mut again, &mut d).unwrap();
            assert_eq!((with_grad, &again), (total, &losses));
            token_loss_grad(cpu, kind, x, labels, vocab, scale, cap, &mut again, &mut d_bf16).unwrap();
            (losses, d, d_bf16)
        });
        c.check_losses(&losses);
        c.check_gradient(&d, None);
        c.check_gradient(&d_bf16, None);
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
