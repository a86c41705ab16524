//! Softmax and its logarithm against f64 references.

use oarlock_kernels::softmax::{
    log_softmax_backward, log_softmax_forward, softmax_backward, softmax_forward,
};
use oarlock_kernels::{Float, Store, bf16};

use crate::everywhere::{assert_close, f64s, same_everywhere, values};

fn check<T: Float>(rows: usize, dim: usize, tolerance: f64) {
    let (x, dy) = (values::<T>(1, rows * dim), values::<T>(2, rows * dim));
    let outs = same_everywhere(|cpu| {
        let mut outs: [Vec<T>; 5] = std::array::from_fn(|_| x.clone());
        let [y, dx, log_y, log_dx, added] = &mut outs;
        softmax_forward(cpu, &x, dim, y);
        softmax_backward(cpu, y, &dy, dim, (dx, Store::Overwrite));
        log_softmax_forward(cpu, &x, dim, log_y);
        log_softmax_backward(cpu, log_y, &dy, dim, (log_dx, Store::Overwrite));
        softmax_backward(cpu, y, &dy, dim, (added, Store::Add));
        outs
    });
    let (x, dy) = (f64s(&x), f64s(&dy));
    let mut want: [Vec<f64>; 5] = Default::default();
    for (x, dy) in x.chunks(dim).zip(dy.chunks(dim)) {
        let sum: f64 = x.iter().map(|x| x.exp()).sum();
        let mean: f64 = x.iter().zip(dy).map(|(x, dy)| x.exp() / sum * dy).sum();
        for (x, dy_j) in x.iter().zip(dy) {
            let p = x.exp() / sum;
            let dx = p * (dy_j - mean);
            let log_dx = dy_j - p * dy.iter().sum::<f64>();
            for (want, value) in want.iter_mut().zip([p, dx, p.ln(), log_dx, x + dx]) {
                want.push(value);
            }
        }
    }
    for (out, want) in outs.iter().zip(want) {
        assert_close(out, &want, tolerance);
    }
}

#[test]
fn softmax_and_its_logarithm_match_the_reference() {
    for (rows, dim) in [(1, 1), (3, 7), (65, 64), (5, 1001)] {
        check::<f32>(rows, dim, 1e-5);
        check::<bf16>(rows, dim, 0.03);
    }
}
