//! Losses of pairs against their formulas and finite differences.

use oarlock_kernels::pair_loss::{PairLoss, each, input_grad, sum, target_grad};
use oarlock_kernels::pieces::TASK_ELEMS;

use crate::everywhere::{assert_close, f64s, same_everywhere, values};

#[test]
fn sums_and_slopes_match_finite_differences() {
    let n = TASK_ELEMS + 3;
    let x = values::<f32>(1, n);
    let target: Vec<f32> = values::<f32>(2, n).into_iter().map(|t| t.abs() + 0.1).collect();
    for loss in [PairLoss::Squared, PairLoss::KlProbs, PairLoss::KlLogProbs] {
        let (total, dx, dt) = same_everywhere(|cpu| {
            let (mut dx, mut dt) = (x.clone(), x.clone());
            input_grad(cpu, loss, 0.5, &x, &target, &mut dx);
            target_grad(cpu, loss, 0.5, &x, &target, &mut dt);
            (sum(cpu, loss, &x, &target), dx, dt)
        });
        let pairs: Vec<(f64, f64)> = f64s(&x).into_iter().zip(f64s(&target)).collect();
        let want: f64 = pairs.iter().map(|&(x, t)| loss.value(x, t)).sum();
        assert!((total - want).abs() < 1e-12 * want.abs() * n as f64);
        let h = 1e-5;
        let slope = |f: &dyn Fn(f64) -> f64| 0.5 * (f(h) - f(-h)) / (2.0 * h);
        let want_dx: Vec<f64> = pairs.iter().map(|&(x, t)| slope(&|h| loss.value(x + h, t))).collect();
        let want_dt: Vec<f64> = pairs.iter().map(|&(x, t)| slope(&|h| loss.value(x, t + h))).collect();
        assert_close(&dx, &want_dx, 1e-6);
        assert_close(&dt, &want_dt, 1e-6);
    }
}

#[test]
fn distances_and_binary_losses_match_finite_differences() {
    let n = TASK_ELEMS + 3;
    let inside = |seed| values::<f32>(seed, n).into_iter().map(|x| 0.5 + 0.24 * x).collect::<Vec<_>>();
    let (x, target) = (inside(1), inside(2));
    let smooth = PairLoss::Smooth { beta: 0.25, factor: 3.0 };
    for loss in [PairLoss::Absolute, smooth, PairLoss::Binary] {
        let (y, dx, dt) = same_everywhere(|cpu| {
            let (mut y, mut dx, mut dt) = (x.clone(), x.clone(), x.clone());
            each(cpu, loss, &x, &target, &mut y);
            input_grad(cpu, loss, 0.5, &x, &target, &mut dx);
            target_grad(cpu, loss, 0.5, &x, &target, &mut dt);
            (y, dx, dt)
        });
        let pairs: Vec<(f64, f64)> = f64s(&x).into_iter().zip(f64s(&target)).collect();
        let want: Vec<f64> = pairs.iter().map(|&(x, t)| loss.value(x, t)).collect();
        assert_close(&y, &want, 1e-6);
        let h = 1e-7;
        let slope = |f: &dyn Fn(f64) -> f64| 0.5 * (f(h) - f(-h)) / (2.0 * h);
        // Kinks have no slope.
        let smooth_at = |&(x, t): &(f64, f64)| {
            let distance = (x - t).abs();
            distance > 1e-5 && (distance - 0.25).abs() > 1e-5
        };
        for (i, pair) in pairs.iter().enumerate().filter(|(_, pair)| smooth_at(pair)) {
            let (x, t) = *pair;
            assert_close(&dx[i..=i], &[slope(&|h| loss.value(x + h, t))], 1e-4);
            assert_close(&dt[i..=i], &[slope(&|h| loss.value(x, t + h))], 1e-4);
        }
    }
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
