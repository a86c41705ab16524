//! Losses of pairs against their formulas.

use oarlock_kernels::pair_loss::{PairLoss, each, input_grad, sum, target_grad};
use oarlock_kernels::pieces::TASK_ELEMS;
use oarlock_reference::pair::{Case, PairLoss as Reference};

use crate::everywhere::same_everywhere;

#[test]
fn losses_and_their_gradients_match_the_reference() {
    let smooth = PairLoss::Smooth { beta: 0.25, factor: 3.0 };
    for (loss, reference) in [
        (PairLoss::Squared, Reference::Squared),
        (PairLoss::KlProbs, Reference::KlProbs),
        (PairLoss::KlLogProbs, Reference::KlLogProbs),
        (PairLoss::Absolute, Reference::Absolute),
        (smooth, Reference::Smooth { beta: 0.25, factor: 3.0 }),
        (PairLoss::Binary, Reference::Binary),
    ] {
        let c = Case::<f32>::new(reference, TASK_ELEMS + 3);
        let (total, y, dx, dt) = same_everywhere(|cpu| {
            let (mut y, mut dx, mut dt) = (c.x.clone(), c.x.clone(), c.x.clone());
            each(cpu, loss, &c.x, &c.target, &mut y);
            input_grad(cpu, loss, 0.5, &c.x, &c.target, &mut dx);
            target_grad(cpu, loss, 0.5, &c.x, &c.target, &mut dt);
            (sum(cpu, loss, &c.x, &c.target), y, dx, dt)
        });
        c.check_sum(total);
        c.check_each(&y);
        c.check_gradients([&dx, &dt], 0.5);
    }
}

#[test]
fn gradients_at_the_ends() {
    let cpu = &crate::everywhere::cpus()[0];
    let (mut dx, mut y) = ([9.0f32; 3], [9.0f32; 3]);
    each(cpu, PairLoss::Binary, &[0.0, 1.0, 0.0], &[1.0, 1.0, 0.0], &mut y);
    assert_eq!(y, [100.0, 0.0, 0.0]);
    input_grad(cpu, PairLoss::Binary, 1.0, &[0.0, 1.0, 0.0], &[1.0, 1.0, 0.0], &mut dx);
    assert_eq!(dx, [-1e12, 0.0, 0.0]);
    input_grad(cpu, PairLoss::Absolute, 1.0, &[1.0, 2.0, 0.0], &[1.0, 1.0, 3.0], &mut dx);
    assert_eq!(dx, [0.0, 1.0, -1.0]);
}

#[test]
fn impossible_targets_cost_nothing() {
    let cpu = &crate::everywhere::cpus()[0];
    assert_eq!(sum(cpu, PairLoss::KlProbs, &[-1.0f32], &[0.0]), 0.0);
    assert_eq!(sum(cpu, PairLoss::KlLogProbs, &[-1.0f32], &[f32::NEG_INFINITY]), 0.0);
}
