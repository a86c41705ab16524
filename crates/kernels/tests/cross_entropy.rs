//! Losses of rows and their gradients against f64 references.

use oarlock_kernels::bf16;
use oarlock_kernels::cross_entropy::{
    RowScale, cross_entropy, cross_entropy_grad, cross_entropy_grad_in_place, soft_cap,
};
use oarlock_reference::formula::value;
use oarlock_reference::loss::{self, Case, SHAPES, Weighting};

use crate::everywhere::{assert_close, cpus, f64s, same_everywhere, values};

#[test]
fn loss_and_gradient_match_the_reference() {
    let shapes = SHAPES.into_iter().chain([[9, 6400], [40, 1001]]).map(|shape| (shape, None));
    for (shape, cap) in shapes.chain([([7, 77], Some(1.5))]) {
        let c = Case::<f32>::new(shape, 6.0, cap, 0.0, Weighting::None);
        let (logits, labels, vocab) = (&c.logits, &c.labels, c.vocab);
        for (scale, even) in [(RowScale::PerRow(&c.scales), None), (RowScale::Uniform(0.5), Some(0.5))] {
            let (total, losses, d, d_bf16) = same_everywhere(|cpu| {
                let (mut losses, mut d, mut d_bf16) =
                    (vec![9.0; c.rows], logits.clone(), vec![bf16::ONE; logits.len()]);
                let total = cross_entropy(cpu, logits, labels, vocab, &mut losses).unwrap();
                let mut again = vec![9.0; c.rows];
                let result =
                    cross_entropy_grad(cpu, logits, labels, vocab, scale, cap, &mut again, &mut d_bf16);
                assert_eq!((result.unwrap(), &again), (total, &losses));
                let result = cross_entropy_grad_in_place(cpu, &mut d, labels, vocab, scale, cap, &mut again);
                assert_eq!((result.unwrap(), &again), (total, &losses));
                (total, losses, d, d_bf16)
            });
            c.check_losses(&losses);
            c.check_gradient(&d, even);
            c.check_gradient(&d_bf16, even);
            assert!((total.sum - c.total()).abs() < 1e-5 * (1.0 + total.sum));
            assert_eq!(total.count, c.n_targets());
        }
    }
}

#[test]
fn logits_are_capped() {
    let x = values::<f32>(1, 77);
    let y = same_everywhere(|cpu| {
        let mut y = x.clone();
        soft_cap(cpu, 1.5, &mut y);
        y
    });
    assert_close("soft_cap", &y, &value([(&[77], f64s(&x))], |[x]| loss::soft_cap(x, Some(1.5))), 1e-6);
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
