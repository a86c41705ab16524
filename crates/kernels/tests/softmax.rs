//! Softmax and its logarithm against f64 references.

use oarlock_kernels::softmax::{
    log_softmax_backward, log_softmax_forward, softmax_backward, softmax_forward,
};
use oarlock_kernels::{Store, bf16};
use oarlock_reference::softmax::{Case, Results, SHAPES};

use crate::everywhere::{Element, same_everywhere};

fn check<T: Element>(rows: usize, dim: usize) {
    let c = Case::<T>::new(rows, dim);
    let got = same_everywhere(|cpu| {
        let mut out: Results<T> = std::array::from_fn(|_| c.start.clone());
        let [y, dx, added, log_y, log_dx, log_added] = &mut out;
        softmax_forward(cpu, &c.x, dim, y);
        softmax_backward(cpu, y, &c.dy, dim, (dx, Store::Overwrite));
        softmax_backward(cpu, y, &c.dy, dim, (added, Store::Add));
        log_softmax_forward(cpu, &c.x, dim, log_y);
        log_softmax_backward(cpu, log_y, &c.dy, dim, (log_dx, Store::Overwrite));
        log_softmax_backward(cpu, log_y, &c.dy, dim, (log_added, Store::Add));
        out
    });
    c.check(&got);
}

#[test]
fn softmax_and_its_logarithm_match_the_reference() {
    for (rows, dim) in SHAPES {
        check::<f32>(rows, dim);
        check::<bf16>(rows, dim);
    }
}
